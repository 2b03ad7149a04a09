"""ReplicaSettings: what one front end is told of the others at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.replicas.timing import BusTiming
from pointsman.edge.configuration.etcd import DEFAULT_FLEET, Etcd
from pointsman.edge.configuration.named import named
from pointsman.edge.configuration.replicas import Replicas
from pointsman.edge.configuration.secret import secret_of_environment


@dataclass(frozen=True, slots=True)
class EtcdPlaces:
    """How front ends find each other in etcd."""

    access: EtcdAccess
    prefix: str
    """Of the keys, one a front end."""
    advertise: str


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Nothing is set: it is alone."""

    listen: str | None = None
    peers: tuple[str, ...] = ()
    secret: str | None = field(default=None, repr=False)
    folder: Path | None = None
    """Of this user alone, where front ends of one host find each other's sockets."""
    etcd: EtcdPlaces | None = None
    fleet: str = DEFAULT_FLEET
    """Front ends of another one are not heard."""
    patient: bool = False
    """A place that is taken is tried again: it is of the front end that this one replaces."""
    timing: BusTiming = field(default_factory=BusTiming)

    @property
    def alone(self) -> bool:
        """There can't be others."""
        return self.listen is None and self.folder is None

    @classmethod
    def of(cls, section: Replicas, etcd: Etcd, environ: Mapping[str, str]) -> ReplicaSettings:
        """From the configuration. Raises ConfigError when a variable is missing, or etcd can't be used."""
        places = None
        if section.etcd and section.listen is not None:
            prefix = f"/pointsman/{etcd.fleet}/replicas/"
            places = EtcdPlaces(EtcdAccess.of(etcd, environ), prefix, str(section.advertise or section.listen))
        return cls(
            listen=None if section.listen is None else str(section.listen),
            peers=tuple(map(str, section.peers)),
            secret=_secret(section, environ),
            etcd=places,
            fleet=etcd.fleet,
            timing=BusTiming(heartbeat_s=section.heartbeat_interval.s, lost_after_s=section.lost_after.s),
        )


def _secret(section: Replicas, environ: Mapping[str, str]) -> str | None:
    if section.secret_env is None:
        return None if section.secret is None else section.secret.reveal()
    with named("replicas.secret_env"):
        return secret_of_environment(section.secret_env, environ, "secret_env").reveal()
