"""WorkerRecord: an engine as a file, etcd or the admin API names it."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.members import NO_HOST
from pointsman.edge.configuration.build import build, refuse_unknown_keys
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.execution_group import Node
from pointsman.edge.configuration.nodes import MappingNode, Place, ScalarNode, plain_node
from pointsman.edge.configuration.nodes import Node as YamlNode

_NO_ADDRESS = frozenset({"", *NO_HOST})


class WorkerRecord(Node, frozen=True, kw_only=True):
    """One engine, with the keys of `execution-group.nodes` and what only others than the configuration say."""

    draining: Annotated[
        str | None, Meta(min_length=1, description="Why it shall get no new work; absent: it shall get some.")
    ] = None


R = TypeVar("R", bound=WorkerRecord)


class NoAddressError(ConfigError):
    """Whoever wrote the record had no address for the engine yet. That is no fault: it will be written again."""


class RegisteredRecord(WorkerRecord, frozen=True, kw_only=True):
    """An engine as `POST /v1/workers` takes it."""

    ttl: Annotated[
        Duration | None,
        Meta(description="It leaves after that unless it is posted again; absent: it stays until it is deleted."),
    ] = None


def record_of_json(value: bytes, where: str, kind: type[R]) -> R:
    """From one JSON object; `where` begins the message of the ConfigError that a wrong one raises.

    Raises NoAddressError for one without an address.
    """
    try:
        plain = msgspec.json.decode(value)
        return record_of_node(plain_node(plain, Place(where)), "", kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: this is no JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where}: this is nested too deeply") from None


def record_of_node(node: YamlNode, path: str, kind: type[R]) -> R:
    """From what was read of YAML; `path` of it begins messages. Raises like `record_of_json`."""
    if not isinstance(node, MappingNode):
        raise ConfigError(f"{node.place}: {path or 'the record'}: expected keys and values of one engine, such as url")
    place = node.key_places.get("url", node.place)
    url = node.values.get("url")
    if url is None:
        refuse_unknown_keys(node, kind, path)  # `ur` is no address that is not known yet
    if url is None or (isinstance(url, ScalarNode) and _says_nothing(url.value)):
        raise NoAddressError(f"{place}: {path + ': ' if path else ''}it has no address yet")
    return build(node, kind, path)


def _says_nothing(url: object) -> bool:
    if url is None:
        return True
    if not isinstance(url, str):
        return False
    rest = url.strip().lower().partition("://")[2] if "://" in url else url.strip().lower()
    host = rest.rstrip("/").rpartition(":")[0] if ":" in rest else rest.rstrip("/")
    return host in _NO_ADDRESS
