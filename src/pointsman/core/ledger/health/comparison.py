"""Comparison: how fast workers of one class are beside each other, with what their load explains taken out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.health.outliers import times_slower
from pointsman.core.ledger.health.signs import LATE_MS, Flow
from pointsman.core.ledger.step_times import StepTimes, class_name
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.core.timing.step import StepCoefficients

STEP_TOKENS = 8_192
"""Of prompts that one step computes."""
CRAWL_ITL_MS = 200.0
"""Faster than that nobody crawls."""
LATE_TIMES = 5.0
_LEAST_TIMES_SLOWER = 4.0
_UNKNOWN_TIMES_SLOWER = 8.0
"""Where nobody knows what their load explains."""
_ALONE_TIMES_SLOWER = 10.0
"""Where nobody of its like has streams to compare with."""
_ENOUGH_TOKENS = 10
_MOST_PEERS = 128
"""That one is compared with, out of more."""
_ENOUGH_FIRST_TOKENS = 5

Flows = Mapping[WorkerId, Flow]


def class_of(entry: WorkerEntry) -> str:
    """Workers of one class should be equally fast."""
    return entry.worker_class or class_name(entry.spec)


def others_sequences(table: FleetTable, entry: WorkerEntry) -> int:
    """Sequences there that are not ours: of other front ends, and of nobody that we know."""
    return int(table.cells[Column.FOREIGN, entry.slot]) + entry.others.sequences


class Comparison:
    """Holds nothing of its own."""

    def __init__(self, table: FleetTable, times: StepTimes | None) -> None:
        self._table = table
        self._times = times

    def step(self, entry: WorkerEntry) -> StepCoefficients | None:
        """Its learned step times; None: nothing is known of them."""
        times = None if self._times is None else self._times.timing.get(entry.id)
        return None if times is None else times.step

    # ---- time between tokens

    def crawling(self, alike: Sequence[WorkerEntry], flows: Flows) -> dict[WorkerId, float]:
        """Those whose streams crawl, with how many times slower than their like they are.

        Where none of its like has streams, ten times what its own load explains is a crawl.
        """
        slow = [e for e in alike if e.id in flows and flows[e.id].tokens and flows[e.id].itl_ms >= CRAWL_ITL_MS]
        if not slow:
            return {}
        slow_ones = {entry.id for entry in slow}
        busy = [e for e in alike if e.id in flows and flows[e.id].tokens]
        compared = busy[:: 1 + len(busy) // _MOST_PEERS]
        known = {e.id: self._slowness(e, flows[e.id]) for e in (*compared, *slow)}
        peers = [e.id for e in compared if flows[e.id].tokens >= _ENOUGH_TOKENS]
        if not [peer for peer in peers if peer not in slow_ones]:
            peers = [
                entry.id for entry in compared
            ]  # all are slow: that few tokens came of each is what is to be compared
        least, scores = _LEAST_TIMES_SLOWER, {worker: score for worker, score in known.items() if score is not None}
        if len(scores) < len(known):
            least, scores = _UNKNOWN_TIMES_SLOWER, {worker: math.log(flows[worker].itl_ms) for worker in known}
        found = _slower([entry.id for entry in slow], scores, peers, least)
        if least == _LEAST_TIMES_SLOWER and len(flows) == 1:
            alone = scores[slow[0].id]
            found |= {slow[0].id: math.exp(alone)} if alone >= math.log(_ALONE_TIMES_SLOWER) else {}
        return found

    def _slowness(self, entry: WorkerEntry, flow: Flow) -> float | None:
        """Log of its time between tokens over what its load explains; None: nobody knows that."""
        step = self.step(entry)
        if step is None or self._times is None:
            return None
        cells, slot = self._table.cells, entry.slot
        # Plain answers are in the batch as well, and whatever waits in the engine's queue is not.
        there = int(cells[Column.RUNNING, slot] + cells[Column.FOREIGN, slot] - cells[Column.QUEUED, slot])
        sequences = max(flow.streams + others_sequences(self._table, entry), float(there))
        waiting = min(float(STEP_TOKENS), float(cells[Column.PREFILL_TOKENS, slot]))
        ms = step.step_ms(sequences, float(cells[Column.KV_TOKENS, slot]), waiting + flow.prefilled_a_token)
        return math.log(flow.itl_ms / max(1e-3, ms / self._times.factor(entry.id)))

    # ---- time to the first token

    def note_first_token(self, entry: WorkerEntry, flight: Flight, at_ms: float) -> None:
        """How long it took, and what was ahead of it. Where requests of nobody we know are there nobody can tell."""
        step = self.step(entry)
        cells, slot = self._table.cells, entry.slot
        if step is None or self._times is None or cells[Column.FOREIGN, slot] or flight.adapter_missing:
            return
        if flight.legs is not None and not flight.legs.failed:
            return  # others had part in it
        ahead_ms = step.a_ms + step.d_ms_per_prefill_token * flight.ahead_tokens
        ahead_ms += step.q_ms_per_square_token * float(flight.request.prompt_tokens) ** 2
        entry.health.signs.first_token(at_ms, at_ms - flight.dispatched_ms, ahead_ms / self._times.factor(entry.id))

    def late(self, alike: Sequence[WorkerEntry], since_ms: float) -> dict[WorkerId, tuple[float, float]]:
        """Those whose first tokens since then came late: median of the waits in ms, times its like."""
        if not any(entry.health.signs.late_ms >= since_ms for entry in alike):
            return {}
        waited = {e.id: e.health.signs.waited_ms(since_ms, _ENOUGH_FIRST_TOKENS) for e in alike}
        slow = {worker: ms for worker, ms in waited.items() if ms is not None and ms >= LATE_MS}
        if not slow:
            return {}
        scores = {e.id: e.health.signs.lateness(since_ms) for e in alike if waited[e.id] is not None}
        found = _slower(list(slow), scores, list(scores), LATE_TIMES)
        return {worker: (slow[worker], times) for worker, times in found.items()}


def _slower(
    workers: Sequence[WorkerId], scores: Mapping[WorkerId, float], peers: Sequence[WorkerId], least_times: float
) -> dict[WorkerId, float]:
    """As times_slower, of several. Who is not far above the median of all is not compared one by one."""
    middle = statistics.median(scores[peer] for peer in peers) if peers else -math.inf
    if len(peers) > 2:
        workers = [worker for worker in workers if scores[worker] >= middle + math.log(least_times) / 2]
    found = {}
    for worker in workers:
        times = times_slower(scores[worker], [scores[peer] for peer in peers if peer != worker], least_times)
        if times is not None:
            found[worker] = times
    return found


def canary_times_slower(entry: WorkerEntry, total_ms: float, others: Mapping[WorkerId, float]) -> float | None:
    """How many times as long as those of its like its canary took, if that is far out."""
    peers = [math.log(max(1.0, ms)) for worker, ms in others.items() if worker != entry.id]
    return times_slower(math.log(total_ms), peers, LATE_TIMES)
