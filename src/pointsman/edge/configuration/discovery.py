"""Section `discovery`: engines that are not written in this file."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration

LONGEST_RESYNC = Duration(30)


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Where engines are found besides `execution-group.nodes`; all of these may be used together."""

    file: Annotated[
        str | None,
        Meta(min_length=1, description="YAML or JSON file with a list of engines, keys as in `execution-group.nodes`."),
    ] = None
    file_interval: Annotated[
        Duration, Meta(description="Between two looks at the file; what changed is used when two looks agree.")
    ] = Duration(0.5)
    etcd: Annotated[
        bool, Meta(description="Engines that are registered in the etcd of section `etcd` (`pointsman engine --join`).")
    ] = False
    etcd_prefix: Annotated[
        str | None,
        Meta(min_length=1, description="What keys of engines begin with; default `/pointsman/FLEET/workers/`."),
    ] = None
    resync_interval: Annotated[
        Duration,
        Meta(description="Between two listings of etcd that find what a watch has missed; at most 30s."),
    ] = Duration(20)
    vanish_grace: Annotated[
        Duration,
        Meta(
            description="How long an engine is kept whose record in etcd vanished without a farewell: its lease is "
            "over, or etcd was wiped. One that registers again meanwhile never left."
        ),
    ] = Duration(30)
    api_key_envs: Annotated[
        tuple[str, ...],
        Meta(
            description="Environment variables that `api_key_env` may name in etcd or `POST /v1/workers`; those that "
            "`execution-group.nodes` names may be, too."
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.resync_interval > LONGEST_RESYNC:
            raise KeyConflictError(
                "resync_interval",
                f"{self.resync_interval} is longer than {LONGEST_RESYNC}: engines that are gone would stay for long "
                "when a watch dies in silence; shorten it",
            )
        if self.etcd_prefix is not None and not self.etcd_prefix.endswith("/"):
            raise KeyConflictError("etcd_prefix", f"{self.etcd_prefix} must end with a slash")
