"""Replicas: what the other front ends of the fleet have at its workers, as they tell it.

What they have is added to the same numbers that policies see for our own requests, so an engine's own count of its
load, which knows no difference, leaves over only what is nobody's. Each of them tells of a worker all that it has
there, never a difference: what is lost or comes twice is right again with the next word about that worker, or with the
next whole state, and forgetting a replica takes back exactly what it added.

A worker that left and came back is another entry here as it is there: each front end tells of the one that it knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import add, sub

import numpy as np

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.caches import Caches
from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.replica import NO_SHARE, PromptTold, WorkerShare
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId

_COLUMNS = np.array(
    [
        Column.RUNNING,
        Column.PREFILL_TOKENS,
        Column.KV_TOKENS,
        Column.WAITING_FIRST,
        Column.REMAINING_TOKENS,
        Column.SLO_DECODING,
        Column.SLO_TPOT_US,
        Column.SLO_WAITING,
        Column.SLO_DUE_MS,
        Column.TRANSFERS_OUT,
        Column.TRANSFERS_IN,
    ],
    dtype=np.intp,
)
"""In the order of WorkerShare after `requests`; here the due times are on our clock."""
_COLUMN_LIST: tuple[int, ...] = tuple(_COLUMNS.tolist())


@dataclass(slots=True)
class _Replica:
    shares: dict[WorkerId, WorkerShare] = field(default_factory=dict)
    """Due times are on our clock."""
    complete: bool = False
    """It told everything once."""


class Replicas:
    """Numbers of others, in the fleet's table and apart from it."""

    def __init__(self, table: FleetTable, caches: Caches, find: Callable[[WorkerId], WorkerEntry | None]) -> None:
        self._table = table
        self._caches = caches
        self._find = find
        self._replicas: dict[str, _Replica] = {}
        self._expected: list[tuple[WorkerEntry, WorkerShare]] = []
        """Of the others, since we told last."""
        self._expected_before: deque[list[tuple[WorkerEntry, WorkerShare]]] = deque()
        """Of the others, between each two times that we told before."""
        self.expected_at: dict[int, int] = {}
        """Slot → sequences there that are expected only."""

    # ---- what they tell

    def told(self, event: ev.ReplicaTold) -> None:
        """A replica told what it has at some workers, or at all."""
        replica = self._replicas.setdefault(event.replica, _Replica())
        news = event.news
        late = news.whole or not replica.complete
        replica.complete |= news.whole
        if news.whole:
            for worker in [known for known in replica.shares if known not in news.shares]:
                self._set(replica, worker, NO_SHARE)
        for worker, share in news.shares.items():
            if share.slo_waiting:
                share = share._replace(slo_due_in_ms=share.slo_due_in_ms + share.slo_waiting * round(event.at_ms))
            self._set(replica, worker, share, was_foreign=late)
        for prompt in news.prompts:
            self._prompt(prompt, event.at_ms)

    def gone(self, event: ev.ReplicaGone) -> None:
        """All that it had is free."""
        replica = self._replicas.pop(event.replica, None)
        if replica is not None:
            for worker in list(replica.shares):
                self._set(replica, worker, NO_SHARE)

    # ---- what they have not told yet

    def expect(self, entry: WorkerEntry, sent: WorkerShare) -> None:
        """We sent a request to a worker: the others, who see the same, may be sending as many there at this moment.

        Until they can have told, each of ours counts for one of each of them: else all of them fill the worker that
        is best for all, until they hear of each other.
        """
        if not self._replicas:
            return
        count = len(self._replicas)
        expected = WorkerShare(*(count * number for number in sent))
        self._expected.append((entry, expected))
        self._add(entry, NO_SHARE, expected, told=False)
        self.expected_at[entry.slot] = self.expected_at.get(entry.slot, 0) + expected.sequences

    def told_others(self) -> None:
        """We tell the others now what we did until now."""
        self._expected_before.append(self._expected)
        self._expected = []

    def heard_others(self) -> None:
        """What the others did until then is known by now, of the times that we told the oldest that is left."""
        for entry, expected in self._expected_before.popleft() if self._expected_before else ():
            if entry.gone:
                continue
            self._add(entry, expected, NO_SHARE, told=False)
            self.expected_at[entry.slot] -= expected.sequences
            if not self.expected_at[entry.slot]:
                del self.expected_at[entry.slot]

    # ---- membership

    def joined(self, entry: WorkerEntry) -> None:
        """A worker is new here; others may have told of it before."""
        for replica in self._replicas.values():
            share = replica.shares.get(entry.id)
            if share is not None:
                self._add(entry, NO_SHARE, share)

    def left(self, entry: WorkerEntry) -> None:
        """Its slot may live on for requests of ours. What others have there is kept for its next incarnation."""
        self._add(entry, entry.others, NO_SHARE)
        self._add(entry, entry.guessed, NO_SHARE, told=False)
        self.expected_at.pop(entry.slot, None)

    # ---- answers

    def own_share(self, entry: WorkerEntry, at_ms: float) -> WorkerShare:
        """What our own requests add to a worker, as others are told."""
        numbers: list[int] = self._table.cells[_COLUMNS, entry.slot].tolist()
        own = WorkerShare(entry.in_flight, *map(sub, numbers, entry.not_ours[1:]))
        return own._replace(slo_due_in_ms=own.slo_due_in_ms - own.slo_waiting * round(at_ms))

    def requests(self) -> Mapping[str, int]:
        """Replica → requests that it says it has at workers."""
        return {
            name: sum(share.requests for share in replica.shares.values()) for name, replica in self._replicas.items()
        }

    # ---- inside

    def _set(self, replica: _Replica, worker: WorkerId, share: WorkerShare, *, was_foreign: bool = False) -> None:
        before = replica.shares.get(worker, NO_SHARE)
        if share == NO_SHARE:
            replica.shares.pop(worker, None)
        else:
            replica.shares[worker] = share
        entry = self._find(worker)
        if entry is None or share == before:
            return
        self._add(entry, before, share)
        if was_foreign:
            self._not_foreign(entry, max(0, share.sequences - before.sequences))

    def _add(self, entry: WorkerEntry, before: WorkerShare, after: WorkerShare, *, told: bool = True) -> None:
        # With a thousand workers and ten front ends this runs ten thousand times a second: most changes are of few
        # columns, which one by one cost less than an array.
        change = tuple(map(sub, after, before))
        cells, slot = self._table.cells, entry.slot
        for column, more in zip(_COLUMN_LIST, change[1:], strict=True):
            if more:
                cells[column, slot] += more
        if not told:
            entry.guessed = WorkerShare._make(map(add, entry.guessed, change))
            return
        entry.others = WorkerShare._make(map(add, entry.others, change))
        if cells[Column.QUEUED, slot]:
            # As for requests of our own: the engine's count is of its last reading.
            cells[Column.QUEUED, slot] = max(0, int(cells[Column.QUEUED, slot]) + change[0])

    def _not_foreign(self, entry: WorkerEntry, sequences: int) -> None:
        """What a replica told late was in the engine's last count already."""
        cells, slot = self._table.cells, entry.slot
        cells[Column.FOREIGN, slot] = max(0, int(cells[Column.FOREIGN, slot]) - sequences)
        if entry.foreign_before is not None:
            entry.foreign_before = max(0, entry.foreign_before - sequences)

    def _prompt(self, prompt: PromptTold, at_ms: float) -> None:
        entry = self._find(prompt.worker)
        if entry is None:
            return
        if prompt.taken_back:
            ours = [flight.request for flight in entry.flights.values()]
            self._caches.taken_back_elsewhere(entry.slot, prompt, ours)
            return
        self._caches.sent_elsewhere(entry.slot, prompt, at_ms)
        self._table.cells[Column.HELD_TOKENS, entry.slot] = self._caches.held_tokens(entry.slot)
        if prompt.model in entry.spec.adapters:
            entry.adapters.used(prompt.model)
