"""HealthKeeper: what becomes of workers' health when something happens. It looks over all of them with each tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.health.blame import Blame
from pointsman.core.ledger.health.canaries import CanaryDue, canaries_due, why_no_canary
from pointsman.core.ledger.health.canary_verdicts import of_canary
from pointsman.core.ledger.health.changes import Changes, HealthChange, HealthCounts
from pointsman.core.ledger.health.doubts import settle_doubts
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.health import Health
from pointsman.core.ledger.health.review import Review
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.standing import Position
from pointsman.core.ledger.health.verdicts import Judge
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import WorkerId, WorkerSpec

_COUNTED = frozenset({Fault.LOST, Fault.SERVER_ERROR, Fault.ERROR_EVENT, Fault.MALFORMED, Fault.LATE})
"""Faults that open the breaker. A late connection is a doubt, and being overloaded is no fault."""
_CRASHES_TO_STOP = 2
"""Canaries of which a worker died, with none that passed between, until it gets no more."""
_MOST_CRASHES = 1_000
"""Workers of which they are counted."""
_TICK_MS = 1_000.0
_TICKS_APART_MS = 3_000.0
"""When ticks are further apart, or by half a heartbeat, the front end itself was held up, and looks at nobody."""
_CANARY_MISSED = 3.0
"""Times that a canary may take after which nobody will say how it went."""


class HealthKeeper:
    """Owned by the fleet. `write`: a worker's exclusion may be another one now."""

    def __init__(
        self,
        settings: HealthSettings,
        table: FleetTable,
        entries: Mapping[WorkerId, WorkerEntry],
        write: Callable[[WorkerEntry], None],
        judge: Judge,
    ) -> None:
        self._settings = settings
        self._table = table
        self._entries = entries
        self._write = write
        self._judge = judge
        self.changes = Changes()
        self.canaries: Counter[tuple[WorkerId, ev.CanaryResult]] = Counter()
        """How they went."""
        self._blame = Blame()
        self._crashes: Counter[WorkerId] = Counter()
        """Canaries that a worker died of since one passed, in all its lives."""
        self._review = Review(entries, write)
        self._ticked_ms: float | None = None

    def change(self, settings: HealthSettings) -> None:
        """Other limits from now on; what was found by the former ones stays until it is looked at again."""
        switched = settings.canary != self._settings.canary
        self._settings = self._judge.settings = settings
        for entry in self._entries.values():
            entry.health.settings = settings
            if switched:
                crashed = self._crashes[entry.id] >= _CRASHES_TO_STOP
                entry.health.canary_off = why_no_canary(settings, entry.spec, crashed)
        self._review.look(settings.most_out, self._now_ms())

    # ---- membership

    def joined(self, spec: WorkerSpec, before: WorkerEntry | None, at_ms: float) -> Health:
        """The health of a new incarnation; `before`: the one whose place it takes, whose cool-off it inherits."""
        health = Health(spec.id, self._settings, self.changes, at_ms)
        health.canary_off = why_no_canary(self._settings, spec, self._crashes[spec.id] >= _CRASHES_TO_STOP)
        if before is not None:
            health.standing.cool_off_ms = before.health.standing.cool_off_ms
        return health

    def left(self, worker: WorkerId) -> None:
        """It is gone, for good as far as anybody knows."""
        self.changes.forget(worker)
        for key in [key for key in self.canaries if key[0] == worker]:
            del self.canaries[key]
        self._review.left(worker, self._settings.most_out, self._now_ms())

    def moved(self, entry: WorkerEntry) -> None:
        """Something of its health changed: its exclusion, and perhaps who else has to be used."""
        self._write(entry)
        self._review.changed(entry, self._settings.most_out, self._now_ms())

    def _now_ms(self) -> float:
        """Of the last tick; whoever is used all the same is so since about then."""
        return self._ticked_ms or 0.0

    # ---- requests

    def dispatched(self, entry: WorkerEntry, request_id: str) -> None:
        """A request goes there; the first one to a worker on trial is the one that shows how it is."""
        health = entry.health
        if health.door_open:
            health.trial_request = request_id
            self._write(entry)

    def first_token(self, entry: WorkerEntry, flight: Flight, at_ms: float) -> None:
        """A request got its first token, or its whole answer."""
        health = entry.health
        health.failures.streak = 0
        if health.token_seen(at_ms):
            self.moved(entry)
        if health.trial_request == flight.request.id:
            health.trust(Cause.TRIAL, "a request let through to it was answered", at_ms)
            self.moved(entry)
        if self._settings.outliers and flight.request.streamed:
            health.signs.prefilled(flight.request.prompt_tokens - flight.cached_tokens)
            self._judge.comparison.note_first_token(entry, flight, at_ms)

    def answered(self, entry: WorkerEntry, flight: Flight, at_ms: float) -> None:
        """A request ended well."""
        health = entry.health
        health.answered(at_ms)
        self._blame.answered(flight.admitted)
        if health.trial_request == flight.request.id:
            health.trust(Cause.TRIAL, "a request let through to it was answered", at_ms)
            self.moved(entry)
        if health.token_seen(at_ms):
            self.moved(entry)

    def failed(
        self, entry: WorkerEntry, flight: Flight, fault: Fault, reason: str, at_ms: float, retry_after_ms: float | None
    ) -> None:
        """An attempt failed at a worker that is there."""
        health = entry.health
        if fault is Fault.OVERLOADED:
            health.pause(retry_after_ms, at_ms)
            self.moved(entry)
        elif fault is Fault.CONNECT_LATE:
            health.doubt(Cause.CONNECTIONS, "a connection to it took too long", at_ms)
        elif fault in _COUNTED or fault is Fault.UNREACHABLE:
            self._count(entry, flight, reason, at_ms)

    def _count(self, entry: WorkerEntry, flight: Flight, reason: str, at_ms: float) -> None:
        health = entry.health
        on_trial = health.trial_request == flight.request.id
        if not self._blame.counts(flight.admitted, entry.id) or (health.standing.left_out and not on_trial):
            return
        health.failures.failed(at_ms)
        too_many = health.failures.too_many(at_ms, self._settings)
        if on_trial:
            too_many = "a request let through to it failed"
        if too_many is not None:
            health.leave_out(Cause.FAILURES, f"{too_many}, the last: {reason}", at_ms)
            self.moved(entry)

    def released(self, entry: WorkerEntry, request_id: str) -> None:
        """A request is not there any more. One that was to show how the worker is, and did not, lets another one in."""
        if entry.health.trial_request == request_id:
            entry.health.trial_request = None
            self._write(entry)

    # ---- readings

    def streams_read(self, event: ev.StreamsRead) -> None:
        """Somebody looked at the streams of a worker; one that left meanwhile is of no interest."""
        entry = self._entries.get(event.worker)
        if entry is None:
            return
        entry.health.signs.read(event)
        entry.health.seen_tokens += event.tokens
        if event.tokens and event.last_ms > entry.health.last_token_ms and entry.health.token_seen(event.last_ms):
            self.moved(entry)

    def canary_sent(self, event: ev.CanarySent) -> None:
        """A canary is under way."""
        entry = self._entries.get(event.worker)
        if entry is not None:
            entry.health.canary_sent_ms = entry.health.canary_at_ms = event.at_ms

    def canary_read(self, event: ev.CanaryRead) -> None:
        """A canary came back, or did not. Of one that was sent to a process before this one nothing follows."""
        if event.result is ev.CanaryResult.LOST:
            self._count_crash(event.worker)
        elif event.result is ev.CanaryResult.PASSED:
            self._crashes.pop(event.worker, None)
        entry = self._entries.get(event.worker)
        if entry is not None:
            self.canaries[event.worker, event.result] += 1
        if entry is None or entry.health.canary_sent_ms != event.sent_ms:
            return
        health = entry.health
        health.canary_sent_ms, health.canary_read_ms = None, event.at_ms
        health.canary_last, health.canary_reason = event.result, event.reason
        health.canary_total_ms = event.total_ms
        if event.result is ev.CanaryResult.LOST and self._crashes[event.worker] >= _CRASHES_TO_STOP:
            health.no_canaries(f"{self._crashes[event.worker]} canaries ended with its connection lost", event.at_ms)
        if event.result is ev.CanaryResult.LATE and self._held_up(event.at_ms):
            self.moved(entry)
            return  # the front end itself did not look
        of_canary(self._judge, entry, event, self._entries.values())
        self.moved(entry)

    def _count_crash(self, worker: WorkerId) -> None:
        """In all the worker's lives, so it is kept of those that are gone, too; of the last ones only."""
        self._crashes[worker] += 1
        if len(self._crashes) > _MOST_CRASHES:
            del self._crashes[next(iter(self._crashes))]

    # ---- time

    def ticked(self, at_ms: float) -> None:
        """Cool-offs and pauses end, and everybody's streams are looked at."""
        held_up = self._ticked_ms is None or self._held_up(at_ms)
        self._ticked_ms = at_ms
        moved = [entry for entry in self._entries.values() if self._time_passed(entry.health, at_ms)]
        if held_up or not self._settings.outliers:
            settle_doubts(self._entries.values(), self._settings, at_ms)
        else:
            moved += self._judge.look(self._entries.values(), at_ms)
        self._all_moved(moved)

    def _held_up(self, at_ms: float) -> bool:
        """True if the front end did nothing for a while, so that what it saw last says nothing of workers."""
        apart_ms = min(_TICKS_APART_MS, _TICK_MS + 0.5 * self._settings.heartbeat_ms)
        return self._ticked_ms is not None and at_ms - self._ticked_ms > apart_ms

    def computes(self, entry: WorkerEntry, at_ms: float) -> bool:
        """True if a long prompt that is being computed may be why it answers no probe."""
        return self._judge.computes(entry, at_ms)

    def _time_passed(self, health: Health, at_ms: float) -> bool:
        """True if that ended a pause or a cool-off."""
        pause_over = health.pause_over(at_ms)
        return (health.standing.left_out and self._on_trial(health, at_ms)) or pause_over

    def _all_moved(self, entries: Collection[WorkerEntry]) -> None:
        """As `moved`, with one look at the others for all of them."""
        looks = False
        for entry in entries:
            self._write(entry)
            looks = self._review.note(entry, self._settings.most_out) or looks
        if looks:
            self._review.look(self._settings.most_out, self._now_ms())

    def _on_trial(self, health: Health, at_ms: float) -> bool:
        """True if another one may be let through now."""
        standing = health.standing
        if standing.cooled_off(at_ms):
            return True
        since_ms = max(standing.since_ms, health.canary_read_ms)
        missed = at_ms - since_ms > _CANARY_MISSED * self._settings.canary_ms
        if standing.position is Position.TRIAL and missed and not health.canary_missing:
            health.canary_missing = True
            health.canary_sent_ms = None
            return True
        return False

    def canaries_due(self, at_ms: float) -> tuple[CanaryDue, ...]:
        """Who should get a canary now, the most urgent first."""
        return canaries_due(self._entries.values(), self._table, self._settings, at_ms)

    # ---- to show

    @property
    def counts(self) -> HealthCounts:
        """So far."""
        return HealthCounts(dict(self.changes.counts), dict(self.canaries), self.changes.lost)

    def take_changes(self) -> tuple[HealthChange, ...]:
        """What changed since the last time."""
        return self.changes.take()
