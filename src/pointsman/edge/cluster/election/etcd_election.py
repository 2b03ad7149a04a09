"""Elections in etcd: who makes the role's key leads, as long as the lease lasts on which the key hangs.

The candidate counts its lease from before it asked for it, and takes off a margin for clocks that run differently: it
has stepped down before etcd lets the lease end, also while it can't reach etcd, and also after its process stood still.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.cluster.election.election import ElectionStatus, Leadership
from pointsman.edge.cluster.etcd.client import Lease, Listing, Outcome
from pointsman.edge.cluster.etcd.errors import EtcdUnreachableError, LeaseLostError
from pointsman.edge.cluster.etcd.messages import Parts, created_at, putting

_log = logging.getLogger("pointsman.cluster")

TTL_S = 10
_MARGIN = 0.1
"""Of the lease's time, for clocks that run differently."""
_LOOKS = 10
"""In the lease's time, at whether there is a leader, or for etcd to answer again."""
_RENEWALS = 3


class EtcdElectionClient(Protocol):
    """The part of EtcdClient that is needed here."""

    async def read(self, key: bytes, *, prefix: bool = False) -> Listing:
        """As EtcdClient's."""
        ...

    async def transact(self, conditions: Parts, then: Parts, otherwise: Parts = ()) -> Outcome:
        """As EtcdClient's."""
        ...

    async def grant(self, ttl_s: int) -> Lease:
        """As EtcdClient's."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """As EtcdClient's."""
        ...

    async def revoke(self, lease: int) -> None:
        """As EtcdClient's."""
        ...


class _Office(msgspec.Struct, frozen=True):
    """Value of the role's key."""

    leader: str
    base: int = 0
    """Added to the revision at which the key was made; what was the highest token when etcd was made anew."""


class EtcdElection:
    """Of one candidate for one role. All candidates have to use the same `ttl_s`, or none lasts longer than thought.

    Tokens are revisions of etcd, which only grow. When etcd was made anew, candidates that knew it before go on from
    the highest token that they saw, and wait until a leader that knows nothing of it must have stepped down.
    """

    def __init__(
        self,
        client: EtcdElectionClient,
        fleet: str,
        role: str,
        candidate: str,
        *,
        ttl_s: int = TTL_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._key = f"/pointsman/{fleet}/leaders/{role}".encode()
        self._role = role
        self._candidate = candidate
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._term: Leadership | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._leases: set[int] = set()
        """Ours, as far as they may not be over."""
        self._leader: str | None = None
        self._trouble: str | None = None
        self._cluster_id: int | None = None
        self._revision = 0
        """The last that was seen."""
        self._base = 0
        self._highest = 0
        self._not_before_s = -math.inf

    async def campaign(self) -> Leadership:
        """As Election's. Raises RuntimeError while it leads; etcd that is away is waited for."""
        if self._term is not None and self._term.holds:
            raise RuntimeError(f"{self._candidate} leads as {self._role} already")
        while True:
            try:
                term = await self._try()
            except PointsmanError as error:
                if self._trouble is None:
                    _log.warning("nobody can be elected %s: %s", self._role, error)
                self._trouble = str(error)
                self._leader = None
            else:
                if self._trouble is not None:
                    _log.info("a %s can be elected again", self._role)
                self._trouble = None
                if term is not None:
                    _log.info("%s is the %s now (term %d)", self._candidate, self._role, term.token)
                    return term
            await asyncio.sleep(self._ttl_s / _LOOKS)

    async def resign(self) -> None:
        """As Election's. While etcd is away the term ends here at once, and for others when its time is over."""
        if self._term is not None:
            self._term.end("resigned")
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        with suppress(PointsmanError):
            await self._give_back()

    @property
    def status(self) -> ElectionStatus:
        """As Election's."""
        term = self._term
        leads = term is not None and term.holds
        return ElectionStatus(
            self._role,
            self._candidate,
            self._candidate if leads else self._leader,
            term.token if leads and term is not None else None,
            self._trouble,
        )

    # ---- being elected

    async def _try(self) -> Leadership | None:
        # A lease of a try whose answer was lost may hold the office, and its time is not known.
        await self._give_back()
        listing = await self._client.read(self._key)
        self._look_at_cluster(listing)
        if listing.entries:
            office = _office(listing.entries[0].value)
            self._leader = office.leader
            self._base = max(self._base, office.base)
            self._highest = max(self._highest, office.base + listing.entries[0].create_revision)
            return None
        self._leader = None
        if self._now_s() < self._not_before_s:
            return None
        asked_s = self._now_s()
        lease = await self._client.grant(self._ttl_s)
        self._leases.add(lease.id)
        value = msgspec.json.encode(_Office(self._candidate, self._base))
        outcome = await self._client.transact([created_at(self._key, 0)], [putting(self._key, value, lease.id)])
        if not outcome.succeeded:
            return None
        self._revision = outcome.revision
        self._highest = self._base + outcome.revision
        term = Leadership(self._highest, self._now_s, self._until_s(asked_s))
        self._term, self._leader = term, self._candidate
        self._keeping = asyncio.create_task(self._keep(term, lease, asked_s), name=f"lead as {self._role}")
        return term

    def _look_at_cluster(self, listing: Listing) -> None:
        # One that is set up again as it was has the id that it had.
        if self._cluster_id not in (None, listing.cluster_id) or listing.revision < self._revision:
            _log.warning("etcd was made anew: terms of a %s go on from %d", self._role, self._highest)
            self._base = self._highest
            self._not_before_s = self._now_s() + self._ttl_s
        self._cluster_id, self._revision = listing.cluster_id, listing.revision

    async def _give_back(self) -> None:
        for lease in tuple(self._leases):
            await self._client.revoke(lease)
            self._leases.discard(lease)

    # ---- leading

    def _until_s(self, asked_s: float) -> float:
        return asked_s + self._ttl_s * (1 - _MARGIN)

    async def _keep(self, term: Leadership, lease: Lease, asked_s: float) -> None:
        try:
            reason = await self._renew(term, lease, self._until_s(asked_s))
        except Exception as error:
            reason = f"its lease can't be kept: {error}"
        _log.warning("%s is not the %s any more: %s", self._candidate, self._role, reason)
        term.end(reason)

    async def _renew(self, term: Leadership, lease: Lease, until_s: float) -> str:
        """Until it can't be; why."""
        pause_s, trouble = self._ttl_s / _RENEWALS, "this process stood still"
        while True:
            await asyncio.sleep(max(0.0, min(pause_s, until_s - self._now_s())))
            asked_s = self._now_s()
            if asked_s >= until_s:
                return f"its time is over: {trouble}"
            try:
                async with asyncio.timeout(until_s - asked_s):
                    await self._client.keep_alive(lease.id)
            except LeaseLostError as error:
                return str(error)
            except (EtcdUnreachableError, TimeoutError) as error:
                trouble = str(error) or "etcd does not answer"
                pause_s = self._ttl_s / _LOOKS
            else:
                until_s = self._until_s(asked_s)
                term.renewed(until_s)
                pause_s, trouble = self._ttl_s / _RENEWALS, "this process stood still"


def _office(value: bytes) -> _Office:
    try:
        return msgspec.json.decode(value, type=_Office)
    except msgspec.MsgspecError:
        return _Office("somebody unknown")
