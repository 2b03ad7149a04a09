"""EtcdReplicas: how front ends of several hosts find each other: each keeps a key with its place in etcd."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.cluster.etcd.client import EtcdClient
from pointsman.edge.cluster.etcd.errors import EtcdUnreachableError
from pointsman.edge.cluster.etcd.lease_keeper import keep_lease
from pointsman.edge.cluster.replicas.bus import ReplicaId
from pointsman.edge.cluster.replicas.settings import EtcdPlaces
from pointsman.edge.configuration.replica_place import ReplicaPlace

_log = logging.getLogger("pointsman.cluster")

TTL_S = 10
_AGAIN_S = 1.0
_RELIST_S = 20.0
"""A watch that died in silence says nothing."""
_KEEP_S = 60.0
"""So long others are followed whose keys are gone: an etcd that was wiped or slow loses keys of ones that live on,
and to try where nobody is costs next to nothing."""


class EtcdReplicas:
    """While etcd is away or forgets them, those that are known stay known: whether they live they say themselves."""

    def __init__(
        self,
        places: EtcdPlaces,
        replica: ReplicaId,
        port: int | None = None,
        again_s: float = _AGAIN_S,
        keep_s: float = _KEEP_S,
    ) -> None:
        """`port`: that was taken, where the place to advertise has none."""
        advertise = ReplicaPlace(places.advertise)
        self._place = advertise if advertise.port or port is None else advertise.with_port(port)
        self._prefix = places.prefix.encode()
        self._replica = replica
        self._again_s = again_s
        self._keep_s = keep_s
        self._seen_s: dict[str, float] = {}
        """Place → when it was there."""
        self._client = EtcdClient(places.access)
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why etcd can't be asked now."""
        return self._trouble

    async def run(self, found: Callable[[Collection[str]], None]) -> None:
        """Register, and tell who is there, until cancelled; then the key is deleted."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._for_ever(self._register), name="this replica in etcd")
                group.create_task(self._for_ever(lambda: self._follow(found)), name="replicas in etcd")
        finally:
            try:
                async with asyncio.timeout(1.0):
                    await self._client.delete(self._prefix + self._replica.encode())
            except (PointsmanError, TimeoutError):
                pass  # its lease ends
            await self._client.close()

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except PointsmanError as error:
                if self._trouble is None:
                    _log.warning("replicas: etcd: %s; those that are known go on talking", error)
                self._trouble = str(error)
            await asyncio.sleep(self._again_s)

    async def _register(self) -> None:
        lease = await self._client.grant(TTL_S)
        await self._client.put(self._prefix + self._replica.encode(), self._place.encode(), lease=lease.id)
        self._well()
        why = await keep_lease(self._client, lease, time.monotonic)
        raise EtcdUnreachableError(f"the lease of this replica is lost: {why}")

    async def _follow(self, found: Callable[[Collection[str]], None]) -> None:
        listing = await self._client.read(self._prefix, prefix=True)
        self._well()
        now_s = time.monotonic()
        self._seen_s |= {place: now_s for entry in listing.entries if (place := _place(entry.value))}
        self._seen_s = {place: seen_s for place, seen_s in self._seen_s.items() if now_s - seen_s < self._keep_s}
        found(list(self._seen_s))
        try:
            async with asyncio.timeout(min(_RELIST_S, self._keep_s)):
                async for changes in self._client.watch(self._prefix, listing.revision + 1, prefix=True):
                    if changes.events:
                        return  # list anew
        except TimeoutError:
            return

    def _well(self) -> None:
        if self._trouble is not None:
            _log.info("replicas: etcd answers again")
            self._trouble = None


def _place(value: bytes) -> str | None:
    try:
        return ReplicaPlace.parse(value.decode())
    except ValueError as error:
        _log.warning("replicas: what etcd has is no place of a front end: expected %s; it is ignored", error)
        return None
