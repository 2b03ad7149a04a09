"""Replication: what one front end does to be one of several, put together, started and stopped as a whole."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.cluster.replicas.bus import Bus, NoBus, ReplicaId
from pointsman.edge.cluster.replicas.etcd_places import EtcdReplicas
from pointsman.edge.cluster.replicas.ledger_sync import LedgerSync
from pointsman.edge.cluster.replicas.named_places import NamedPlaces
from pointsman.edge.cluster.replicas.prefix_loans import PrefixLoans
from pointsman.edge.cluster.replicas.replica_bus import ReplicaBus, Transport
from pointsman.edge.cluster.replicas.settings import ReplicaSettings
from pointsman.edge.cluster.replicas.sibling_folder import SiblingFolder
from pointsman.edge.cluster.replicas.zmq_transport import ZmqTransport
from pointsman.edge.configuration.replica_place import ReplicaPlace


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Another front end."""

    replica: ReplicaId
    name: str
    silent_ms: float
    """Since its last word."""
    complete: bool
    """All that it told is known."""
    gaps: int


class Replication:
    """Of one front end, alone or not. Make it inside a running event loop.

    Args:
        transport: instead of sockets, for tests; the front end is not alone then.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        ledger: Ledger,
        now_ms: Callable[[], float],
        transport: Transport | None = None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._now_ms = now_ms
        self._tasks: list[asyncio.Task[None]] = []
        self._found: dict[str, Collection[str]] = {"configuration": settings.peers}
        self._zmq: ZmqTransport | None = None
        self._names: NamedPlaces | None = None
        self._replicas: ReplicaBus | None = None
        self._siblings = None if settings.folder is None else SiblingFolder(settings.folder)
        self._etcd: EtcdReplicas | None = None
        if transport is None and not settings.alone:
            transport = self._zmq = self._sockets()
        self.bus: Bus = NoBus()
        """For whoever has something to tell the others."""
        if transport is not None:
            self.bus = self._replicas = ReplicaBus(
                transport, now_ms, name=_name(settings.listen), timing=settings.timing, fleet=settings.fleet
            )
            self._sync = LedgerSync(ledger, self.bus, now_ms)
            self._loans = PrefixLoans(ledger, self.bus, now_ms, self._complete)

    def _sockets(self) -> ZmqTransport:
        settings = self._settings
        listen = [settings.listen] if settings.listen is not None else []
        if self._siblings is not None:
            listen.append(self._siblings.own)
        return ZmqTransport(listen, secret=settings.secret, patient=settings.patient)

    async def start(self) -> None:
        """Listen and speak. Raises EngineError that names the place that can't be used."""
        if self._replicas is None:
            return
        await self._replicas.start()
        if self._zmq is not None:
            self._names = NamedPlaces(self._zmq.follow)
            self._follow_all()
        self._tasks.append(asyncio.create_task(self._loans.run(), name="prefixes of other replicas"))
        if self._siblings is not None:
            work = self._siblings.run(lambda places: self._follow("folder", places))
            self._tasks.append(asyncio.create_task(work, name="siblings"))
        if self._settings.etcd is not None:
            self._etcd = EtcdReplicas(self._settings.etcd, self._replicas.replica, self._port())
            work = self._etcd.run(lambda places: self._follow("etcd", places))
            self._tasks.append(asyncio.create_task(work, name="replicas in etcd"))

    async def close(self) -> None:
        """Say goodbye."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._names is not None:
            self._names.close()
        if self._replicas is not None:
            await self._replicas.close()

    def _complete(self) -> list[ReplicaId]:
        return [] if self._replicas is None else [p.replica for p in self._replicas.peers if not p.wants_whole]

    def _port(self) -> int | None:
        """That was taken where any would do."""
        return None if self._zmq is None else self._zmq.port

    def _follow(self, origin: str, places: Collection[str]) -> None:
        if self._found.get(origin) == places:
            return
        self._found[origin] = places
        self._follow_all()

    def _follow_all(self) -> None:
        if self._names is not None:
            self._names.follow([str(place) for found in self._found.values() for place in found])

    # ---- answers

    @property
    def alone(self) -> bool:
        """There are no others, and there can't be."""
        return self._replicas is None

    @property
    def trouble(self) -> str | None:
        """Why others may not be found."""
        found = [
            None if self._etcd is None else self._etcd.trouble,
            self._taken(),
            None if self._names is None else self._names.trouble,
            None if self._zmq is None else self._zmq.refused_lately,
            None if self._replicas is None else self._replicas.refused_lately,
            None if self._replicas is None else self._replicas.deaf,
        ]
        return "; ".join(filter(None, found)) or None

    def _taken(self) -> str | None:
        place = None if self._zmq is None else self._zmq.waits_for
        if place is None or any(status.name == _name(place) for status in self.statuses()):
            return None  # it is of the front end that this one replaces, which passes on what this one tells
        return f"{place} is taken by something else, so other hosts don't hear this one; name another replicas.listen"

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """The others."""
        if self._replicas is None:
            return ()
        now_ms = self._now_ms()
        return tuple(
            ReplicaStatus(peer.replica, peer.name, now_ms - peer.heard_ms, not peer.wants_whole, peer.gaps)
            for peer in self._replicas.peers
        )

    def messages(self) -> dict[str, int]:
        """Messages by what became of them."""
        return {} if self._replicas is None else dict(self._replicas.counts)

    def refused_connections(self) -> dict[str, int]:
        """Connections that were refused, by where."""
        return {} if self._zmq is None else dict(self._zmq.counts)

    def prompts_not_told(self) -> int:
        """Prompts that others were not told of, since too many waited."""
        return self._ledger.prompts_not_told


def _name(listen: str | None) -> str:
    """For people: where others find it, if that says which one it is."""
    place = None if listen is None else ReplicaPlace(listen)
    if place is None or not place.port:
        return f"{socket.gethostname()}/{os.getpid()}"
    return f"tcp://{socket.gethostname()}:{place.port}" if place.is_anywhere else str(place)
