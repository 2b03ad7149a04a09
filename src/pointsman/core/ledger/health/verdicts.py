"""Verdicts: doubts and their ends, from streams and first tokens, beside workers of the same class.

A worker is in doubt first. It is left out when a canary fails, or when what speaks against it lasts: within two
heartbeats of its beginning. Work that explains it (a long prompt, others' requests, a full batch) makes it no outlier,
and what all of them show alike is nobody's fault.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.events import CanaryResult
from pointsman.core.ledger.health.comparison import CRAWL_ITL_MS, STEP_TOKENS, Comparison, class_of, others_sequences
from pointsman.core.ledger.health.doubts import end_doubt
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.signs import Flow
from pointsman.core.ledger.step_times import StepTimes
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.view import Column
from pointsman.core.timing.step import StepCoefficients

DOUBT_AFTER, OUT_AFTER = 0.75, 1.75
"""Heartbeats of silence. With the second between two ticks it is less than two."""
WARM_UP_MS = 180_000.0
"""A worker that never generated anything may still have to compile."""
_CRAWLS_ON = 1.25
"""Heartbeats for which a crawl has to go on after it was noticed."""
_ALONE_OUT_AFTER = 6.0
"""Heartbeats of silence in one or two streams while canaries pass: an engine may hold back what it generates."""
_FEW_STREAMS = 3
_HELD_BACK_TOKENS = 5
"""Of each silent stream, by which its own count has to grow between two heartbeats."""
_COMPUTES_FOR = 6.0
"""Heartbeats for which a long prompt may explain that probes are not answered."""
_GAPS = 10.0
"""Usual times between two tokens that are no silence yet."""
_PREFILL_FACTOR = 2.0
"""Times as long as predicted that a prompt may hold up everything."""
_UNKNOWN_MS_PER_TOKEN = 10.0
"""Of a prompt, where nobody knows: a small CPU."""
_FIRST_TOKENS_FOR = 12.0
"""Heartbeats for which a first token counts."""


class Judge:
    """Looks at workers side by side."""

    def __init__(self, settings: HealthSettings, table: FleetTable, times: StepTimes | None) -> None:
        self.settings = settings
        self.table = table
        self.comparison = Comparison(table, times)

    # ---- streams, with each tick

    def look(self, entries: Collection[WorkerEntry], at_ms: float) -> list[WorkerEntry]:
        """Doubts, verdicts and their ends; the workers of which something changed."""
        looked = [entry for entry in entries if entry.health.usable_by_probes and not entry.health.standing.left_out]
        by_class: dict[str, list[WorkerEntry]] = {}
        for entry in looked:
            by_class.setdefault(class_of(entry), []).append(entry)
        moved: list[WorkerEntry] = []
        for alike in by_class.values():
            moved += self._look_at_class(alike, at_ms)
        return moved

    def _look_at_class(self, alike: list[WorkerEntry], at_ms: float) -> list[WorkerEntry]:
        silent = {e.id: ms for e in alike if (ms := self.silent_ms(e, at_ms)) is not None}
        doubt_ms = DOUBT_AFTER * self.settings.heartbeat_ms
        long = [e for e in alike if silent.get(e.id, 0.0) >= doubt_ms]
        stalled = {e.id for e in long if silent[e.id] >= self._patience_ms(e, DOUBT_AFTER)}
        all_alike = len(silent) > 1 and 2 * len(stalled) > len(silent)
        flows = {}
        if any(entry.health.signs.may_crawl(CRAWL_ITL_MS) for entry in alike):
            flows = {e.id: flow for e in alike if (flow := e.health.signs.flow(at_ms)) is not None}
        crawling = self.comparison.crawling(alike, flows)
        late = self.comparison.late(alike, at_ms - _FIRST_TOKENS_FOR * self.settings.heartbeat_ms)
        moved = []
        for entry in alike:
            before = entry.health.standing.position
            if entry.id in stalled:
                self._stalls(entry, silent[entry.id], at_ms, all_alike=all_alike)
            elif not (
                self._crawls(entry, flows.get(entry.id), crawling.get(entry.id), at_ms)
                or self._late(entry, late.get(entry.id), at_ms)
            ):
                end_doubt(entry, self.settings, at_ms)
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
        flights = entry.flights.values()
        waiting = [one.dispatched_ms for one in flights if one.request.streamed and not one.elsewhere]
        if not waiting or others_sequences(self.table, entry):
            return None
        never = health.proof_ms == -math.inf
        if never and at_ms - health.ready.since_ms < WARM_UP_MS:
            return None
        return at_ms - max(health.last_token_ms, min(waiting))

    def stands_still(self, entry: WorkerEntry, at_ms: float) -> bool:
        """True if nothing comes of the streams that are there, and nothing explains it."""
        silent_ms = self.silent_ms(entry, at_ms)
        return silent_ms is not None and silent_ms >= self._patience_ms(entry, DOUBT_AFTER)

    def computes(self, entry: WorkerEntry, at_ms: float) -> bool:
        """True if a long prompt may keep it from anything else."""
        waiting = [flight.dispatched_ms for flight in entry.flights.values() if flight.prefill_tokens]
        if not waiting:
            return False
        most_ms = min(self._prefill_ms(entry, self.comparison.step(entry)), _COMPUTES_FOR * self.settings.heartbeat_ms)
        return at_ms - max(entry.health.last_token_ms, min(waiting)) < most_ms

    def _patience_ms(self, entry: WorkerEntry, heartbeats: float) -> float:
        """How long it may be silent."""
        gap_ms = 0.0
        step = self.comparison.step(entry)
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
        beside = min(STEP_TOKENS, int(self.table.cells[Column.PREFILL_TOKENS, entry.slot]) - longest)
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
        if (few or self._holds_back(entry, streams)) and at_ms - health.generated_ms < 1.5 * settings.heartbeat_ms:
            return  # it says that it generates, and an engine may hold a tool call back until it is whole
        out_after = OUT_AFTER
        canary_passed = health.canary_last is CanaryResult.PASSED and (health.canary_at_ms or 0.0) > at_ms - silent_ms
        if few and canary_passed and health.canary_sent_ms is None:
            out_after = _ALONE_OUT_AFTER
        if silent_ms >= self._patience_ms(entry, out_after) and not all_alike:
            health.leave_out(Cause.STALLED, reason, at_ms)
        else:
            health.doubt(Cause.STALLED, reason + (", as at most of its like" if all_alike else ""), at_ms)

    def _holds_back(self, entry: WorkerEntry, streams: int) -> bool:
        """True if it generates more than it shows, and only the streams that are silent can be what for."""
        if entry.health.unseen_tokens < _HELD_BACK_TOKENS * streams or others_sequences(self.table, entry):
            return False
        return all(flight.request.streamed for flight in entry.flights.values())

    def _crawls(self, entry: WorkerEntry, flow: Flow | None, slower: float | None, at_ms: float) -> bool:
        """True if its streams crawl beside those of its like."""
        health, signs = entry.health, entry.health.signs
        if flow is not None and slower is not None:
            signs.crawls_since_ms = at_ms if signs.crawls_since_ms is None else signs.crawls_since_ms
            reason = f"{flow.itl_ms:.0f} ms between tokens, {slower:.0f} times what its like and its load explain"
        elif flow is not None and not flow.tokens and signs.crawls_since_ms is not None:
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

    def _late(self, entry: WorkerEntry, found: tuple[float, float] | None, at_ms: float) -> bool:
        """True if its first tokens come late beside those of its like."""
        signs, standing = entry.health.signs, entry.health.standing
        if found is None:
            signs.tokens_late = 0
            return False
        waited_ms, slower = found
        reason = f"{waited_ms / 1000:.1f} s to first tokens, {slower:.0f} times what its like and its load explain"
        if not signs.tokens_late:
            signs.tokens_late = signs.late_count
        lasts = standing.cause is Cause.FIRST_TOKENS and at_ms - standing.since_ms >= self.settings.heartbeat_ms
        if lasts and signs.late_count - signs.tokens_late >= 2:
            entry.health.leave_out(Cause.FIRST_TOKENS, reason, at_ms)
        else:
            entry.health.doubt(Cause.FIRST_TOKENS, reason, at_ms)
        return True
