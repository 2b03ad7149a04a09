"""EtcdJoiner: an engine's record in etcd, on a lease that the engine keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from pointsman.edge.cluster.etcd.client import EtcdClient, Lease
from pointsman.edge.cluster.etcd.errors import EtcdError, LeaseLostError
from pointsman.edge.cluster.etcd.lease_keeper import keep_lease
from pointsman.edge.cluster.etcd.messages import created_at, putting, reading, written_at
from pointsman.edge.cluster.join.joiner import Trouble

_FIRST_PAUSE_S = 0.5
_FAREWELL_S = 3.0
"""More is not worth it: the lease ends by itself."""


class _TakenError(Exception):
    """Another engine is registered under that name."""


class EtcdJoiner:
    """Registers below `prefix` under `name`. The client belongs to the caller.

    A lost lease is nothing but a reason to register again: the process may have been stopped for a while, or etcd
    wiped.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        name: str,
        record: bytes,
        ttl_s: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._key = f"{prefix}{name}".encode()
        self._record = record
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._lease: Lease | None = None
        """What a record of ours may hang on."""
        self._registered = False
        self._trouble = Trouble(f"etcd {prefix}{name}")

    async def run(self) -> None:
        """Registers, and again whenever that is lost, until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                lease = await self._register()
                self._trouble.over()
                pause_s = _FIRST_PAUSE_S
                reason = await keep_lease(self, lease, self._now_s)
                self._lease, self._registered = None, False
                self._trouble.is_(f"{reason}; registering again")
                continue
            except (EtcdError, _TakenError) as error:
                self._trouble.is_(str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, max(_FIRST_PAUSE_S, self._ttl_s / 3))

    async def keep_alive(self, lease: int) -> int:
        """As EtcdClient's. Raises LeaseLostError also when the lease lives and the record is gone all the same."""
        ttl_s = await self._client.keep_alive(lease)
        found = (await self._client.read(self._key)).entries
        if found and _url_of(found[0].value) in (None, _url_of(self._record)):
            return ttl_s
        await self._client.revoke(lease)
        raise LeaseLostError("somebody deleted its record, or registered another engine under its name")

    async def say(self, record: bytes) -> None:
        """Another record from now on."""
        self._record = record
        if self._lease is None or not self._registered:
            return
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._client.put(self._key, record, self._lease.id)
        except (EtcdError, TimeoutError) as error:
            self._trouble.is_(f"its record could not be changed: {str(error) or 'no answer in time'}")

    async def leave(self) -> None:
        """Take the record away."""
        lease, self._lease, self._registered = self._lease, None, False
        if lease is None:
            return
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._client.revoke(lease.id)
        except (EtcdError, TimeoutError) as error:
            self._trouble.is_(f"its record stays for {lease.ttl_s} s: {str(error) or 'no answer in time'}")

    async def _register(self) -> Lease:
        asked_at_s, record = self._now_s(), self._record
        lease = self._lease = await self._client.grant(self._ttl_s)
        mine = [putting(self._key, record, lease.id)]
        try:
            outcome = await self._client.transact([created_at(self._key, 0)], mine, [reading(self._key)])
            while not outcome.succeeded:
                if not outcome.read:  # it went in between
                    outcome = await self._client.transact([created_at(self._key, 0)], mine, [reading(self._key)])
                    continue
                (found,) = outcome.read
                self._refuse_stranger(found.value)
                outcome = await self._client.transact(
                    [written_at(self._key, found.mod_revision)], mine, [reading(self._key)]
                )
        except (EtcdError, _TakenError):
            await self._give_back(lease)
            raise
        if self._now_s() - asked_at_s >= lease.ttl_s:
            raise LeaseLostError(f"etcd took more than its {lease.ttl_s} s to register it")
        self._registered = True
        if self._record != record:  # it was told to say something else meanwhile
            await self._client.put(self._key, self._record, lease.id)
        return lease

    async def _give_back(self, lease: Lease) -> None:
        self._lease = None
        try:
            await self._client.revoke(lease.id)
        except EtcdError:
            return  # it ends by itself

    def _refuse_stranger(self, value: bytes) -> None:
        theirs, ours = _url_of(value), _url_of(self._record)
        if theirs is not None and theirs != ours:
            raise _TakenError(f"{theirs} is registered under this name; stop it, or choose another --name")


def _url_of(record: bytes) -> str | None:
    try:
        plain = msgspec.json.decode(record)
    except msgspec.MsgspecError:
        return None
    url = plain.get("url") if isinstance(plain, dict) else None
    return url if isinstance(url, str) else None
