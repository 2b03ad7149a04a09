"""Elections within one process: whoever came first leads, until it resigns."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict, deque
from contextlib import suppress

from pointsman.edge.cluster.election.election import ElectionStatus, Leadership


class InProcessElections:
    """All roles of a process; all on one event loop."""

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._leaders: dict[str, tuple[InProcessElection, Leadership]] = {}
        self._waiting: defaultdict[str, deque[tuple[InProcessElection, asyncio.Future[Leadership]]]] = defaultdict(
            deque
        )

    def election(self, role: str, candidate: str) -> InProcessElection:
        """Of one candidate for one role."""
        return InProcessElection(self, role, candidate)

    async def campaign(self, election: InProcessElection) -> Leadership:
        """As Election's."""
        waiting: asyncio.Future[Leadership] = asyncio.get_running_loop().create_future()
        entry = (election, waiting)
        self._waiting[election.role].append(entry)
        self._elect(election.role)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.cancelled():
                with suppress(ValueError):  # left out already
                    self._waiting[election.role].remove(entry)
            else:  # elected in the same moment
                self.resign(election)
            raise

    def resign(self, election: InProcessElection) -> None:
        """As Election's."""
        leader = self._leaders.get(election.role)
        if leader is not None and leader[0] is election:
            del self._leaders[election.role]
            leader[1].end("resigned")
            self._elect(election.role)

    def leader(self, role: str) -> tuple[InProcessElection, Leadership] | None:
        """Who leads, and its term."""
        return self._leaders.get(role)

    def _elect(self, role: str) -> None:
        waiting = self._waiting[role]
        while waiting and waiting[0][1].done():  # cancelled, and did not come to its end yet
            waiting.popleft()
        if role in self._leaders or not waiting:
            return
        election, elected = waiting.popleft()
        term = Leadership(next(self._tokens), time.monotonic)
        self._leaders[role] = (election, term)
        elected.set_result(term)


class InProcessElection:
    """Of one candidate."""

    def __init__(self, elections: InProcessElections, role: str, candidate: str) -> None:
        self._elections = elections
        self.role = role
        self._candidate = candidate

    async def campaign(self) -> Leadership:
        """As Election's. Raises RuntimeError while it leads."""
        leader = self._elections.leader(self.role)
        if leader is not None and leader[0] is self:
            raise RuntimeError(f"{self._candidate} leads as {self.role} already")
        return await self._elections.campaign(self)

    async def resign(self) -> None:
        """As Election's."""
        self._elections.resign(self)

    @property
    def status(self) -> ElectionStatus:
        """As Election's."""
        leader = self._elections.leader(self.role)
        if leader is None:
            return ElectionStatus(self.role, self._candidate, None, None)
        election, term = leader
        return ElectionStatus(self.role, self._candidate, election._candidate, term.token if election is self else None)
