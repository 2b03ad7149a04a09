"""Just as much of an etcd as an election needs, in virtual time; candidates can be cut off from it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pointsman.edge.cluster.etcd.client import Lease, Listing, Outcome
from pointsman.edge.cluster.etcd.errors import EtcdUnreachableError, LeaseLostError
from pointsman.edge.cluster.etcd.messages import KeyValue, Parts

_TIMEOUT_S = 3.0


class FakeEtcd:
    """Leases end when their time is over on the event loop's clock, and not a moment before."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.revision = 1
        self.cluster_id = 7
        self._leases: dict[int, tuple[float, int]] = {}
        self._keys: dict[bytes, KeyValue] = {}

    def wipe(self) -> None:
        self.revision, self.cluster_id = 1, self.cluster_id + 1
        self._leases.clear()
        self._keys.clear()

    def client(self) -> FakeEtcdClient:
        return FakeEtcdClient(self)

    def expire(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for lease in [lease for lease, (over_s, _) in self._leases.items() if over_s <= now_s]:
            self.drop(lease)

    def drop(self, lease: int) -> None:
        self._leases.pop(lease, None)
        for key in [key for key, kv in self._keys.items() if kv.lease == lease]:
            del self._keys[key]

    # ---- what it does when it is asked

    def read(self, key: bytes) -> Listing:
        found = (self._keys[key],) if key in self._keys else ()
        return Listing(self.revision, self.cluster_id, found)

    def transact(self, conditions: Parts, then: Parts) -> Outcome:
        condition: Any = conditions[0]
        if condition["key"] in self._keys:
            return Outcome(False, self.revision, ())
        put: Any = then[0]["request_put"]
        if put["lease"] not in self._leases:
            raise LeaseLostError("lease not found")
        self.revision += 1
        self._keys[put["key"]] = KeyValue(put["key"], put["value"], self.revision, self.revision, put["lease"])
        return Outcome(True, self.revision, ())

    def grant(self, ttl_s: int) -> Lease:
        self.revision += 1
        lease = 1000 * self.cluster_id + self.revision
        self._leases[lease] = (asyncio.get_running_loop().time() + ttl_s, ttl_s)
        return Lease(lease, ttl_s)

    def keep_alive(self, lease: int) -> int:
        if lease not in self._leases:
            raise LeaseLostError("lease not found")
        ttl_s = self._leases[lease][1]
        self._leases[lease] = (asyncio.get_running_loop().time() + ttl_s, ttl_s)
        return ttl_s


class FakeEtcdClient:
    """One candidate's way there. `cut`: nothing gets through; `deaf`: what it asks is done, and no answer comes."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self.etcd = etcd
        self.cut = False
        self.deaf = False

    async def _way(self) -> None:
        if self.cut:
            await asyncio.sleep(self.etcd.rng.uniform(0.0, _TIMEOUT_S))
            raise EtcdUnreachableError("etcd is away")
        await asyncio.sleep(self.etcd.rng.uniform(0.0, 0.3))
        self.etcd.expire()

    async def _back(self) -> None:
        if self.deaf:
            await asyncio.sleep(self.etcd.rng.uniform(0.0, _TIMEOUT_S))
            raise EtcdUnreachableError("no answer")
        await asyncio.sleep(self.etcd.rng.uniform(0.0, 0.3))

    async def read(self, key: bytes, *, prefix: bool = False) -> Listing:
        await self._way()
        listing = self.etcd.read(key)
        await self._back()
        return listing

    async def transact(self, conditions: Parts, then: Parts, otherwise: Parts = ()) -> Outcome:
        await self._way()
        outcome = self.etcd.transact(conditions, then)
        await self._back()
        return outcome

    async def grant(self, ttl_s: int) -> Lease:
        await self._way()
        lease = self.etcd.grant(ttl_s)
        await self._back()
        return lease

    async def keep_alive(self, lease: int) -> int:
        await self._way()
        ttl_s = self.etcd.keep_alive(lease)
        await self._back()
        return ttl_s

    async def revoke(self, lease: int) -> None:
        await self._way()
        self.etcd.drop(lease)
        await self._back()
