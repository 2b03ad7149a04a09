"""Which keys of the configuration change while a front end runs, and in which two configurations differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pointsman.edge.configuration.describe import item_of, struct_of, value_of
from pointsman.edge.configuration.tree import ConfigTree

NODES = "execution-group.nodes"
POLICY = ("routing.policy", "routing.rollout")
SHADOW = ("routing.shadow",)
GUARDS = ("routing.guards",)
INTAKE = (
    "routing.slo_classes",
    "routing.default_slo_class",
    "control-plane.debug_headers",
    "control-plane.timeouts",
    "failover",
)
TIMES = ("control-plane.timeouts",)
LIMITS = ("control-plane.limits", "control-plane.timeouts")
GRACES = (
    "control-plane.shutdown_grace",
    "control-plane.ready_lag",
    "control-plane.drain_grace",
    "control-plane.drain_cut_after",
)
SAMPLING = ("decision-log.sample", "decision-log.state")
TENANCY = ("auth.keys_file", "auth.admin_key", "auth.admin_key_env", "tenants")
HEALTH = ("control-plane.heartbeat_interval", "control-plane.health", "control-plane.health_canary")
FAILOVER = ("failover",)
TRANSFER = ("routing.kv_transfer", "routing.kv_transfer_max_bytes", "routing.fallback_to_local")
LINKS = ("links.file",)

LIVE = tuple(
    dict.fromkeys(
        (
            NODES,
            *(*POLICY, *SHADOW, *GUARDS, *TRANSFER, *LINKS, *INTAKE, *LIMITS, *GRACES, *SAMPLING, *TENANCY, *HEALTH),
            *FAILOVER,
        )
    )
)
"""These and all under them. Everything else is read at the start only."""


def is_live(key: str) -> bool:
    """Whether a change of a key takes effect at a reload."""
    return any(under(key, prefix) for prefix in LIVE)


def under(key: str, prefix: str) -> bool:
    """Whether a key is `prefix` or in that section."""
    return key == prefix or key.startswith((f"{prefix}.", f"{prefix}["))


def changed_keys(old: ConfigTree, new: ConfigTree) -> list[str]:
    """Dotted names of keys whose values differ; of a list of sections the list. Never values: some are secret."""
    return list(_changed(old, new, ""))


def _changed(old: Any, new: Any, path: str) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        for field in msgspec.structs.fields(type(old)):
            inner = f"{path}.{field.encode_name}".lstrip(".")
            yield from _changed(getattr(old, field.name), getattr(new, field.name), inner)
    else:
        yield path


def all_keys() -> Iterator[str]:
    """Dotted names of all keys that there are, lists and mappings of sections as one."""
    yield from _keys(ConfigTree, "")


def _keys(section: type[msgspec.Struct], path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(section):
        key = f"{path}.{field.encode_name}".lstrip(".")
        child = struct_of(field.type)
        if child is None or item_of(field.type) is not None or value_of(field.type) is not None:
            yield key
        else:
            yield from _keys(child, key)
