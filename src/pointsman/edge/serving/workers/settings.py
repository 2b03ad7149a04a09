"""DiscoverySettings: where engines are found besides the configuration, and how their records are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.discovery.record import WorkerRecord
from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.control_plane import ControlPlane, no_such_level
from pointsman.edge.configuration.named import named
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.workers.source import source_of
from pointsman.edge.traces.profile_file import load_profile


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Makes sources of records. Raises ConfigError for one that can't be used here."""

    plane: ControlPlane = field(default_factory=ControlPlane)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_variables: frozenset[str] | None = frozenset()
    """Variables that `api_key_env` may name; None: any. Else whoever may register could have any secret sent to him."""

    def __call__(self, record: WorkerRecord) -> WorkerSource:
        """The source that a record stands for."""
        levels = self.plane.topology_levels
        for level in record.topology:
            if level not in levels:
                raise ConfigError(f"topology.{level}: {no_such_level(level, levels)}")
        variable = record.api_key_env
        if variable is not None and self.key_variables is not None and variable not in self.key_variables:
            raise ConfigError(
                f"api_key_env: {variable} may not be named here; the front end allows those in discovery.api_key_envs"
            )
        if record.profile is not None:
            with named("profile"):
                load_profile(record.profile)
        try:
            source = source_of(record, self.plane, self.environ)
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix("execution-group.nodes: ")) from None
        return replace(source, draining=record.draining)


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Without a file and an etcd, engines come from the configuration and the admin API only."""

    file: Path | None = None
    file_interval_s: float = 0.5
    etcd: EtcdAccess | None = None
    etcd_prefix: str = "/pointsman/default/workers/"
    resync_s: float = 20.0
    vanish_grace_s: float = 30.0
    read_file: RecordReader = field(default_factory=lambda: RecordReader(key_variables=None))
    """A file is the operator's, as the configuration is."""
    read: RecordReader = field(default_factory=RecordReader)
    """What anybody who may register writes."""

    @classmethod
    def of(cls, tree: ConfigTree, environ: Mapping[str, str]) -> DiscoverySettings:
        """From the configuration. Raises ConfigError when etcd's certificate or password can't be had."""
        section, plane = tree.discovery, tree.control_plane
        named = {node.api_key_env for node in tree.execution_group.nodes if node.api_key_env is not None}
        return cls(
            file=None if section.file is None else Path(section.file),
            file_interval_s=section.file_interval.s,
            etcd=EtcdAccess.of(tree.etcd, environ) if section.etcd else None,
            etcd_prefix=section.etcd_prefix or workers_prefix(tree.etcd.fleet),
            resync_s=section.resync_interval.s,
            vanish_grace_s=section.vanish_grace.s,
            read_file=RecordReader(plane, environ, None),
            read=RecordReader(plane, environ, frozenset({*section.api_key_envs, *named})),
        )


def workers_prefix(fleet: str) -> str:
    """What keys of a fleet's engines begin with."""
    return f"/pointsman/{fleet}/workers/"
