"""Verdicts: doubts and their ends, from streams, first tokens and canaries, beside workers of the same class.

A worker is in doubt first. It is left out when a canary fails, or when what speaks against it lasts: within two
heartbeats of its beginning. Work that explains it (a long prompt, others' requests, a full batch) makes it no outlier,
and what all of them show alike is nobody's fault.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping

from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.events import CanaryRead, CanaryResult
from pointsman.core.ledger.health.canaries import is_idle
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.outliers import times_slower
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.signs import Flow
from pointsman.core.ledger.health.standing import Position
from pointsman.core.ledger.step_times import StepTimes, class_name
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.core.timing.step import StepCoefficients

DOUBT_AFTER, OUT_AFTER = 0.75, 1.75
"""Heartbeats of silence. With the second between two ticks it is less than two."""
_CRAWLS_ON = 1.25
"""Heartbeats for which a crawl has to go on after it was noticed."""
_ALONE_OUT_AFTER = 6.0
"""Heartbeats of silence in one or two streams while canaries pass: an engine may hold back what it generates."""
_FEW_STREAMS = 3
_GAPS = 10.0
"""Usual times between two tokens that are no silence yet."""
_PREFILL_FACTOR = 2.0
"""Times as long as predicted that a prompt may hold up everything."""
_STEP_TOKENS = 8_192
_UNKNOWN_MS_PER_TOKEN = 10.0
"""Of a prompt, where nobody knows: a small CPU."""
_WARM_UP_MS = 180_000.0
"""A worker that never generated anything may still have to compile."""
_LEAST_TIMES_SLOWER = 4.0
_UNKNOWN_TIMES_SLOWER = 8.0
"""Where nobody knows what their load explains."""
_ALONE_TIMES_SLOWER = 10.0
"""Where nobody of its like has streams to compare with."""
_CRAWL_ITL_MS = 200.0
_LATE_MS = 2_000.0
_LATE_TIMES = 5.0
_ENOUGH_TOKENS = 10
_ENOUGH_FIRST_TOKENS = 5
_FIRST_TOKENS_FOR = 12.0
"""Heartbeats for which a first token counts."""
_SLOW_CANARY_MS = 1_000.0


Flows = Mapping[WorkerId, Flow]


class Judge:
    """Looks at workers side by side."""

    def __init__(self, settings: HealthSettings, table: FleetTable, times: StepTimes | None) -> None:
        self.settings = settings
        self.table = table
        self._times = times

    # ---- streams, with each tick

    def look(self, entries: Collection[WorkerEntry], at_ms: float) -> list[WorkerEntry]:
        """Doubts, verdicts and their ends; the workers of which something changed."""
        looked = [entry for entry in entries if entry.health.usable_by_probes and not entry.health.standing.left_out]
        by_class: dict[str, list[WorkerEntry]] = {}
        for entry in looked:
            by_class.setdefault(_class_of(entry), []).append(entry)
        moved: list[WorkerEntry] = []
        for alike in by_class.values():
            moved += self._look_at_class(alike, at_ms)
        return moved

    def _look_at_class(self, alike: list[WorkerEntry], at_ms: float) -> list[WorkerEntry]:
        silent = {e.id: ms for e in alike if (ms := self.silent_ms(e, at_ms)) is not None}
        stalled = {e.id for e in alike if e.id in silent and silent[e.id] >= self._patience_ms(e, DOUBT_AFTER)}
        all_alike = len(silent) > 1 and 2 * len(stalled) > len(silent)
        flows = {e.id: flow for e in alike if (flow := e.health.signs.flow(at_ms)) is not None}
        moved = []
        for entry in alike:
            before = entry.health.standing.position
            if entry.id in stalled:
                self._stalls(entry, silent[entry.id], at_ms, all_alike=all_alike)
            elif not (self._crawls(entry, alike, flows, at_ms) or self._late(entry, alike, at_ms)):
                _end_doubt(entry, self.settings, at_ms)
            if entry.health.standing.position is not before:
                moved.append(entry)
        return moved

    def silent_ms(self, entry: WorkerEntry, at_ms: float) -> float | None:
        """For how long nothing came where something should have; None: nobody can tell, or there is nothing to come."""
        health = entry.health
        reading = health.signs.latest(at_ms)
        if reading is None:
            return None
        if reading.streams:
            return reading.quiet_ms + at_ms - reading.at_ms
        waiting = [flight.dispatched_ms for flight in entry.flights.values() if flight.request.streamed]
        cells, slot = self.table.cells, entry.slot
        if not waiting or cells[Column.FOREIGN, slot]:
            return None
        never = health.proof_ms == -math.inf
        if never and at_ms - health.ready.since_ms < _WARM_UP_MS:
            return None
        return at_ms - max(health.last_token_ms, min(waiting))

    def _patience_ms(self, entry: WorkerEntry, heartbeats: float) -> float:
        """How long it may be silent."""
        gap_ms = 0.0
        step = self._step(entry)
        if step is not None:
            gap_ms = step.step_ms(len(entry.flights), float(self.table.cells[Column.KV_TOKENS, entry.slot]), 0.0)
        beat_ms = self.settings.heartbeat_ms
        longer_ms = (heartbeats - DOUBT_AFTER) * beat_ms
        return max(heartbeats * beat_ms, _GAPS * gap_ms, self._prefill_ms(entry, step) + longer_ms)

    def _prefill_ms(self, entry: WorkerEntry, step: StepCoefficients | None) -> float:
        """The longest time for which prompts that wait there may hold up everything, or about twice that.

        A token comes when the longest of them is computed at the latest: many of them hold up nothing for longer.
        """
        longest = max((flight.prefill_tokens for flight in entry.flights.values()), default=0)
        if not longest:
            return 0.0
        beside = min(_STEP_TOKENS, int(self.table.cells[Column.PREFILL_TOKENS, entry.slot]) - longest)
        tokens = longest + max(0, beside)
        if step is None:
            return _UNKNOWN_MS_PER_TOKEN * tokens
        squares = step.q_ms_per_square_token * float(longest) ** 2
        return _PREFILL_FACTOR * (step.a_ms + step.d_ms_per_prefill_token * tokens + squares)

    def _stalls(self, entry: WorkerEntry, silent_ms: float, at_ms: float, *, all_alike: bool) -> None:
        health, settings = entry.health, self.settings
        reading = health.signs.latest(at_ms)
        streams = reading.streams if reading is not None else 0
        what = f"{streams} streams" if streams else f"{len(entry.flights)} requests"
        reason = f"no token for {silent_ms / 1000:.0f} s with {what} there"
        few = streams < _FEW_STREAMS
        if few and at_ms - health.generated_ms < 1.5 * settings.heartbeat_ms:
            return  # it says that it generates, and an engine may hold a tool call back until it is whole
        out_after = OUT_AFTER
        canary_passed = health.canary_last is CanaryResult.PASSED and (health.canary_at_ms or 0.0) > at_ms - silent_ms
        if few and canary_passed and health.canary_sent_ms is None:
            out_after = _ALONE_OUT_AFTER
        if silent_ms >= self._patience_ms(entry, out_after) and not all_alike:
            health.leave_out(Cause.STALLED, reason, at_ms)
        else:
            health.doubt(Cause.STALLED, reason + (", as at most of its like" if all_alike else ""), at_ms)

    # ---- how fast tokens come

    def _crawls(self, entry: WorkerEntry, alike: list[WorkerEntry], flows: Flows, at_ms: float) -> bool:
        """True if its streams crawl beside those of its like."""
        health, signs = entry.health, entry.health.signs
        flow = flows.get(entry.id)
        if flow is None:
            signs.crawls_since_ms = None
            return False
        slower = self._times_slower(entry, flow, alike, flows) if flow.tokens else None
        if slower is not None and flow.itl_ms >= _CRAWL_ITL_MS:
            signs.crawls_since_ms = at_ms if signs.crawls_since_ms is None else signs.crawls_since_ms
            reason = f"{flow.itl_ms:.0f} ms between tokens, {slower:.0f} times what its like and its load explain"
        elif not flow.tokens and signs.crawls_since_ms is not None:
            reason = health.standing.reason
        else:
            signs.crawls_since_ms = None
            return False
        # A stream that just stopped looks like a crawl once: at a crawl more tokens come.
        goes_on = health.last_token_ms - signs.crawls_since_ms >= signs.window_ms
        if goes_on and at_ms - signs.crawls_since_ms >= _CRAWLS_ON * self.settings.heartbeat_ms:
            health.leave_out(Cause.SLOW, reason, at_ms)
        else:
            health.doubt(Cause.SLOW, reason, at_ms)
        return True

    def _times_slower(self, entry: WorkerEntry, flow: Flow, alike: list[WorkerEntry], flows: Flows) -> float | None:
        """How many times as slow as its like, or, where none of them has streams, as its own load explains."""
        found = ((other, flows.get(other.id)) for other in alike if other is not entry)
        peers = [(other, one) for other, one in found if one is not None and one.tokens >= _ENOUGH_TOKENS]
        mine = self._slowness(entry, flow)
        theirs = [self._slowness(other, one) for other, one in peers]
        if mine is None or None in theirs:
            scores = [math.log(one.itl_ms) for _, one in peers]
            return times_slower(math.log(flow.itl_ms), scores, _UNKNOWN_TIMES_SLOWER)
        if not theirs:
            return math.exp(mine) if mine >= math.log(_ALONE_TIMES_SLOWER) else None
        return times_slower(mine, [one for one in theirs if one is not None], _LEAST_TIMES_SLOWER)

    def _slowness(self, entry: WorkerEntry, flow: Flow) -> float | None:
        """Log of its time between tokens over what its load explains; None: nobody knows that."""
        expected_ms = self._expected_itl_ms(entry, flow)
        return None if expected_ms is None else math.log(flow.itl_ms / expected_ms)

    def _expected_itl_ms(self, entry: WorkerEntry, flow: Flow) -> float | None:
        """What its load explains, were it as fast as its class; None: nobody knows."""
        step = self._step(entry)
        if step is None or self._times is None:
            return None
        cells, slot = self.table.cells, entry.slot
        sequences = flow.streams + float(cells[Column.FOREIGN, slot])
        prefill = min(float(_STEP_TOKENS), float(cells[Column.PREFILL_TOKENS, slot]))
        ms = step.step_ms(sequences, float(cells[Column.KV_TOKENS, slot]), prefill)
        return max(1e-3, ms / self._times.factor(entry.id))

    # ---- first tokens

    def note_first_token(self, entry: WorkerEntry, flight: Flight, at_ms: float) -> None:
        """How long it took, and what was ahead of it. Where others' requests are there nobody can tell."""
        step = self._step(entry)
        cells, slot = self.table.cells, entry.slot
        if step is None or self._times is None or cells[Column.FOREIGN, slot] or flight.adapter_missing:
            return
        ahead_ms = step.a_ms + step.d_ms_per_prefill_token * flight.ahead_tokens
        ahead_ms += step.q_ms_per_square_token * float(flight.request.prompt_tokens) ** 2
        entry.health.signs.first_token(at_ms, at_ms - flight.dispatched_ms, ahead_ms / self._times.factor(entry.id))

    def _late(self, entry: WorkerEntry, alike: list[WorkerEntry], at_ms: float) -> bool:
        """True if its first tokens come late beside those of its like."""
        signs = entry.health.signs
        since_ms = at_ms - _FIRST_TOKENS_FOR * self.settings.heartbeat_ms
        waited_ms, scores = signs.first_tokens(since_ms)
        if len(scores) < _ENOUGH_FIRST_TOKENS or statistics.median(waited_ms) < _LATE_MS:
            signs.tokens_late = 0
            return False
        peers = [other.health.signs.first_tokens(since_ms)[1] for other in alike if other is not entry]
        known = [statistics.median(one) for one in peers if len(one) >= _ENOUGH_FIRST_TOKENS]
        slower = times_slower(statistics.median(scores), known, _LATE_TIMES)
        if slower is None:
            signs.tokens_late = 0
            return False
        waited_s = statistics.median(waited_ms) / 1000
        reason = f"{waited_s:.1f} s to first tokens, {slower:.0f} times what its like and its load explain"
        standing = entry.health.standing
        if not signs.tokens_late:
            signs.tokens_late = signs.late_count
        lasts = standing.cause is Cause.FIRST_TOKENS and at_ms - standing.since_ms >= self.settings.heartbeat_ms
        if lasts and signs.late_count - signs.tokens_late >= 2:
            entry.health.leave_out(Cause.FIRST_TOKENS, reason, at_ms)
        else:
            entry.health.doubt(Cause.FIRST_TOKENS, reason, at_ms)
        return True

    def _step(self, entry: WorkerEntry) -> StepCoefficients | None:
        times = None if self._times is None else self._times.timing.get(entry.id)
        return None if times is None else times.step


def of_canary(judge: Judge, entry: WorkerEntry, event: CanaryRead, entries: Iterable[WorkerEntry]) -> None:
    """What a canary says of its worker."""
    health, result, at_ms = entry.health, event.result, event.at_ms
    if result is CanaryResult.PASSED and _too_slow(entry, event, entries):
        result = CanaryResult.LATE
    if result is CanaryResult.PASSED:
        _passed(judge, entry, event)
    elif result is CanaryResult.REFUSED:
        health.no_canaries(event.reason, at_ms)
        if health.standing.position is Position.SUSPECT and health.standing.cause is Cause.CANARY:
            health.trust(Cause.CANARY, "it refuses canaries, which says nothing of it", at_ms)
    elif result is CanaryResult.BUSY:
        # It takes nothing now, and says so: only a real request can show whether it is well.
        health.canary_missing = health.standing.position is Position.TRIAL
    elif result is CanaryResult.LATE:
        _late_canary(judge, entry, event)
    elif health.standing.position in (Position.SUSPECT, Position.TRIAL):
        health.leave_out(_cause(entry), f"a canary failed: {event.reason}", at_ms)
    else:
        health.doubt(Cause.CANARY, f"a canary failed: {event.reason}", at_ms)


def _passed(judge: Judge, entry: WorkerEntry, event: CanaryRead) -> None:
    health, at_ms = entry.health, event.at_ms
    health.canary_proved(at_ms, event.reason)
    standing = health.standing
    silent_ms = judge.silent_ms(entry, at_ms)
    if silent_ms is not None and silent_ms >= DOUBT_AFTER * judge.settings.heartbeat_ms:
        return  # the streams that are there stand still all the same
    in_doubt = standing.position is Position.SUSPECT and standing.cause in (Cause.CANARY, Cause.CONNECTIONS)
    if in_doubt or standing.position is Position.TRIAL:
        health.trust(Cause.CANARY, f"a canary passed: {event.reason}", at_ms)


def _late_canary(judge: Judge, entry: WorkerEntry, event: CanaryRead) -> None:
    health, at_ms = entry.health, event.at_ms
    position = health.standing.position
    cold = health.proof_ms == -math.inf and at_ms - health.ready.since_ms < _WARM_UP_MS
    queued = bool(judge.table.cells[Column.QUEUED, entry.slot])
    waits = queued and health.standing.cause not in (Cause.STALLED, Cause.CONNECTIONS)
    if position is Position.TRUSTED:
        if cold or not is_idle(entry, judge.table):
            return  # it may compile, or have others to compute first
    elif position is Position.SUSPECT and (cold or waits):
        return
    health.leave_out(_cause(entry), f"a canary was not answered in time: {event.reason}", at_ms)


def _too_slow(entry: WorkerEntry, event: CanaryRead, entries: Iterable[WorkerEntry]) -> bool:
    """A canary that passed, but at a crawl: only of interest where a crawl is the question."""
    standing, total_ms = entry.health.standing, event.total_ms
    if standing.cause not in (Cause.SLOW, Cause.FIRST_TOKENS) or total_ms is None or total_ms < _SLOW_CANARY_MS:
        return False
    name = _class_of(entry)
    peers = [
        math.log(max(1.0, other.health.canary_total_ms))
        for other in entries
        if other is not entry
        and _class_of(other) == name
        and other.health.canary_total_ms is not None
        and other.health.canary_last is CanaryResult.PASSED
    ]
    return times_slower(math.log(total_ms), peers, _LATE_TIMES) is not None


def settle_doubts(entries: Iterable[WorkerEntry], settings: HealthSettings, at_ms: float) -> None:
    """End doubts that nothing keeps up, where nobody looks at streams."""
    for entry in entries:
        if entry.health.standing.position is Position.SUSPECT:
            _end_doubt(entry, settings, at_ms)


def _end_doubt(entry: WorkerEntry, settings: HealthSettings, at_ms: float) -> None:
    """A doubt ends when what raised it is over; one that only a canary can answer ends by tokens, or with time."""
    health = entry.health
    standing = health.standing
    if standing.position is not Position.SUSPECT:
        return
    if standing.cause in (Cause.CANARY, Cause.CONNECTIONS):
        lasted_ms = at_ms - standing.since_ms
        if health.last_token_ms <= standing.since_ms and lasted_ms < 4.0 * settings.canary_ms:
            return
    health.trust(Cause.TOKENS, f"what spoke against it is over: {standing.reason}", at_ms)


def _cause(entry: WorkerEntry) -> Cause:
    return entry.health.standing.cause or Cause.CANARY


def _class_of(entry: WorkerEntry) -> str:
    return entry.worker_class or class_name(entry.spec)
