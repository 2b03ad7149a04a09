"""Section `replicas`: other front ends of the same fleet."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.replica_place import ReplicaPlace
from pointsman.edge.configuration.secret import Secret

_BEATS = 3
"""Heartbeats that fit into the time after which a replica is gone, at least."""


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
    """Other front ends of the same fleet. Those of one `serve --processes` find each other without it."""

    listen: Annotated[
        ReplicaPlace | None,
        Meta(description="Where this one tells others of its load: `tcp://host:port`; with `etcd`, port 0 takes any."),
    ] = None
    peers: Annotated[
        tuple[ReplicaPlace, ...],
        Meta(description="Where the others do; the same list may go to all, this one's own place included."),
    ] = ()
    etcd: Annotated[bool, Meta(description="Find the others in the etcd of section `etcd`, and be found there.")] = (
        False
    )
    advertise: Annotated[
        ReplicaPlace | None,
        Meta(description="Where others reach `listen`, where that is another address; they find it in etcd."),
    ] = None
    secret_env: Annotated[
        str | None,
        Meta(min_length=1, description="Environment variable with a secret that all know: nobody else is heard."),
    ] = None
    secret: Annotated[
        Secret | None, Meta(description="The secret itself; `secret_env` keeps it out of the file. Never printed.")
    ] = None
    heartbeat_interval: Annotated[
        Duration, Meta(description="One that has nothing to tell says that it is there so often.")
    ] = Duration(0.5)
    lost_after: Annotated[
        Duration, Meta(description="Without a word for so long one is gone, and what it had in flight counts no more.")
    ] = Duration(2.5)

    def __post_init__(self) -> None:
        if self.secret is not None and self.secret_env is not None:
            raise KeyConflictError("secret", "secret_env is given too; keep one of them")
        if self.listen is None:
            for key in ("peers", "etcd", "advertise"):
                if getattr(self, key):
                    raise KeyConflictError(key, "listen is missing: the others would hear nothing of this one")
        elif not self.peers and not self.etcd:
            raise KeyConflictError("listen", "who are the others? Name them in peers, or say etcd: true")
        for key, place in (("listen", self.listen), *((f"peers[{i}]", one) for i, one in enumerate(self.peers))):
            if place is not None and not place.port and not (key == "listen" and self.etcd and not self.advertise):
                raise KeyConflictError(key, f"{place}: others can't know which port that will be; name one")
        if self.etcd and self.listen is not None and self.listen.is_anywhere and self.advertise is None:
            raise KeyConflictError("advertise", f"is missing: nobody can connect to {self.listen}")
        if self.secret is None and self.secret_env is None:
            for key, place in (("listen", self.listen), *((f"peers[{i}]", one) for i, one in enumerate(self.peers))):
                if place is not None and not place.is_loopback:
                    raise KeyConflictError(
                        key,
                        f"{place} can be reached from other machines: give all front ends the same secret, in "
                        "replicas.secret_env",
                    )
        if self.lost_after.s < _BEATS * self.heartbeat_interval.s:
            raise KeyConflictError(
                "lost_after",
                f"{self.lost_after} is less than {_BEATS} × heartbeat_interval ({self.heartbeat_interval}): one late "
                "message would free what still runs; make it longer",
            )
