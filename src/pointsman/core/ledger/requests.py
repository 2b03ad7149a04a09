"""Requests: the life of each, from its admission to its one end, and what it has at its worker meanwhile."""

from __future__ import annotations

from pointsman.core.ledger import events as ev
from pointsman.core.ledger import promises
from pointsman.core.ledger.entries import Flight, Totals, WorkerEntry
from pointsman.core.ledger.expectations import Expectations
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.outbox import Outbox
from pointsman.core.ledger.retry_budget import RetryBudget
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.replica import WorkerShare
from pointsman.core.model.view import Column
from pointsman.core.model.worker import Role

_MOST_UNREPORTED_TOKENS = 64
"""Tokens that can be new at the end of an answer of which some were reported; more: it came in larger pieces."""


class Requests:
    """Owned by the ledger. What a request added to a worker is in its flight, and its release takes back just that."""

    def __init__(self, fleet: Fleet, expectations: Expectations, retry_share: float) -> None:
        self._fleet = fleet
        self._expectations = expectations
        self.outbox: Outbox | None = None
        """What other front ends have to be told; None: nobody asked for it."""
        self.flights: dict[str, Flight] = {}
        self.waiting = 0
        self.retries = RetryBudget(retry_share)
        self.totals = Totals()
        self._sequence = 0

    def admitted(self, event: ev.Admitted) -> None:
        """It came."""
        if event.request.id in self.flights:
            raise LedgerError(f"request {event.request.id} was admitted already; ids must be unique")
        self.flights[event.request.id] = Flight(event.request, event.request)
        self.waiting += 1
        self.retries.came()
        self._expectations.came(event.request.model, event.at_ms)
        if self.outbox is not None:
            self.outbox.came(event.request.model)

    def dispatched(self, event: ev.Dispatched) -> None:
        """It goes to a worker."""
        flight = self._flight(event.request_id)
        if flight.entry is not None:
            raise LedgerError(f"request {event.request_id} is at {flight.entry.id} already")
        entry = self._fleet.entry(event.worker)
        self.waiting -= 1
        self._sequence += 1
        request = flight.request = event.rest or flight.admitted
        flight.entry = entry
        flight.dispatched_ms = event.at_ms
        flight.cached_tokens = min(event.cached_tokens, request.prompt_tokens)
        flight.exact = event.exact
        flight.prefill_tokens = request.prompt_tokens - flight.cached_tokens
        flight.kv_tokens = request.prompt_tokens
        flight.started = False
        flight.text_before = self._fleet.sent(entry, request, flight.cached_tokens, event.at_ms, exact=event.exact)
        entry.flights[request.id] = flight
        entry.totals.dispatched += 1
        self.totals.dispatched += 1
        cells = self._fleet.table.cells
        flight.sequences = request.sequences
        cells[Column.RUNNING, entry.slot] += flight.sequences
        cells[Column.PREFILL_TOKENS, entry.slot] += flight.prefill_tokens
        cells[Column.KV_TOKENS, entry.slot] += flight.kv_tokens
        decodes = entry.spec.role is not Role.PREFILL
        promises.dispatched(cells, entry.slot, flight, self._expectations.expected(request) if decodes else None)
        flight.adapter_missing = None
        if request.model in entry.spec.adapters:
            flight.adapter_missing = request.model not in entry.adapters
            entry.adapters.used(request.model)
        cells[Column.LAST_DISPATCH, entry.slot] = self._sequence
        if cells[Column.QUEUED, entry.slot]:
            cells[Column.QUEUED, entry.slot] += 1
        flight.ahead_tokens = int(cells[Column.PREFILL_TOKENS, entry.slot])
        if entry.health.standing.left_out:
            self._fleet.health.dispatched(entry, request.id)
        if entry.watch is not None:
            entry.watch.started(request, event.at_ms, flight.cached_tokens)
        if self.outbox is not None:
            self._tell_sent(self.outbox, flight, entry)

    def first_token(self, event: ev.FirstToken) -> None:
        """Its first token, or its whole answer, came."""
        flight, entry = self._running(event.request_id)
        if flight.started:
            raise LedgerError(f"request {event.request_id} had its first token already")
        flight.started = True
        cells = self._fleet.table.cells
        cells[Column.PREFILL_TOKENS, entry.slot] -= flight.prefill_tokens
        promises.first_token(cells, entry.slot, flight)
        self._expectations.learn_adapter_load(flight, entry, event.at_ms)
        flight.prefill_tokens = 0
        self._changed(entry)
        if not entry.gone:
            self._fleet.health.first_token(entry, flight, event.at_ms)
        if entry.watch is not None and flight.request.streamed:
            # At once: another worker computed the prompt.
            entry.watch.first_token(event.request_id, event.at_ms, computed=event.at_ms > flight.dispatched_ms)

    def progress(self, event: ev.Progress) -> None:
        """More tokens came."""
        flight, entry = self._running(event.request_id)
        if event.tokens < 0:
            raise LedgerError(f"request {event.request_id} can't progress by {event.tokens} tokens")
        if entry.watch is not None and flight.started and flight.request.streamed:
            # The first report of a request includes its first token.
            first = flight.kv_tokens == flight.request.prompt_tokens
            entry.watch.tokens(event.request_id, event.at_ms, max(0, event.tokens - first))
        flight.kv_tokens += event.tokens
        self._fleet.table.cells[Column.KV_TOKENS, entry.slot] += event.tokens
        promises.progress(self._fleet.table.cells, entry.slot, flight)
        self._changed(entry)
        if entry.health.token_seen(event.at_ms) and not entry.gone:
            self._fleet.health.moved(entry)

    def attempt_failed(self, event: ev.AttemptFailed) -> None:
        """Its worker failed it; it waits for another one."""
        flight, entry = self._running(event.request_id)
        self._fleet.request_failed(entry, flight, event)
        self._forget_unless_started(flight, entry)
        self._release(flight, entry)
        if entry.watch is not None:
            entry.watch.ended(event.request_id, event.at_ms)
        flight.entry = None
        self.waiting += 1
        entry.totals.attempts_failed += 1
        self.totals.attempts_failed += 1
        if not flight.started and event.fault is not None:
            self.retries.take(event.at_ms)

    def finished(self, event: ev.Finished) -> None:
        """It was answered."""
        flight, entry = self._running(event.request_id)
        if entry.watch is not None:
            entry.watch.ended(event.request_id, event.at_ms, _tokens_to_learn_from(flight, event.output_tokens))
        if not entry.gone:
            self._fleet.health.answered(entry, flight, event.at_ms)
        self._end(event.request_id, flight)
        self._expectations.learn_ratio(flight.admitted, event.prompt_tokens)
        self._expectations.learn_length(flight, entry, event)
        if event.cached_tokens is not None and event.prompt_tokens is not None:
            entry.drift.observe(event.prompt_tokens, flight.cached_tokens, event.cached_tokens, flight.exact)
        for totals in (entry.totals, self.totals):
            totals.finished += 1
            totals.output_tokens += event.output_tokens or 0
            totals.prompt_tokens += event.prompt_tokens or 0
            if event.cached_tokens is not None and event.prompt_tokens is not None:
                totals.reported_cached_tokens += event.cached_tokens
                totals.reported_prompt_tokens += event.prompt_tokens
                totals.predicted_cached_tokens += flight.cached_tokens

    def refused(self, event: ev.Refused) -> None:
        """Its engine refused it."""
        for totals in self._broken_off(event.request_id, event.at_ms):
            totals.refused += 1

    def failed(self, event: ev.Failed) -> None:
        """Nobody answered it."""
        flight = self._flight(event.request_id)
        if flight.entry is not None:
            self._fleet.request_failed(flight.entry, flight, event)
        for totals in self._broken_off(event.request_id, event.at_ms):
            totals.failed += 1

    def cancelled(self, event: ev.Cancelled) -> None:
        """Its client went away, or it was cut."""
        for totals in self._broken_off(event.request_id, event.at_ms):
            totals.cancelled += 1

    def _broken_off(self, request_id: str, at_ms: float) -> list[Totals]:
        """End a request that was not answered; the totals that count how."""
        flight = self._flight(request_id)
        entry = flight.entry
        if entry is not None:
            self._forget_unless_started(flight, entry)
            if entry.watch is not None:
                entry.watch.ended(request_id, at_ms)
        self._end(request_id, flight)
        return [self.totals] if entry is None else [self.totals, entry.totals]

    def _end(self, request_id: str, flight: Flight) -> None:
        del self.flights[request_id]
        if flight.entry is None:
            self.waiting -= 1
        else:
            self._release(flight, flight.entry)

    def _release(self, flight: Flight, entry: WorkerEntry) -> None:
        cells = self._fleet.table.cells
        cells[Column.RUNNING, entry.slot] -= flight.sequences
        cells[Column.PREFILL_TOKENS, entry.slot] -= flight.prefill_tokens
        cells[Column.KV_TOKENS, entry.slot] -= flight.kv_tokens
        promises.released(cells, entry.slot, flight)
        if cells[Column.QUEUED, entry.slot]:
            cells[Column.QUEUED, entry.slot] -= 1
        flight.prefill_tokens = flight.kv_tokens = flight.sequences = 0
        del entry.flights[flight.request.id]
        if entry.health.trial_request is not None:
            self._fleet.health.released(entry, flight.request.id)
        self._changed(entry)
        self._fleet.released(entry)

    def _forget_unless_started(self, flight: Flight, entry: WorkerEntry) -> None:
        """A request that never got a first token left nothing that one could count on in the worker's cache."""
        if not flight.started:
            others = [other.request for other in entry.flights.values() if other is not flight]
            gone = self._fleet.caches.taken_back(entry.slot, flight.request, flight.text_before, others)
            if self.outbox is not None and not entry.gone:
                self.outbox.taken_back(entry.id, flight.request, *gone)

    def _changed(self, entry: WorkerEntry) -> None:
        """What our requests have at a worker."""
        if self.outbox is not None:
            self.outbox.changed(entry.id)

    def _tell_sent(self, outbox: Outbox, flight: Flight, entry: WorkerEntry) -> None:
        caches = self._fleet.caches
        keys, spec = caches.not_announced(entry.slot, flight.request, flight.cached_tokens, exact=flight.exact)
        outbox.sent(entry.id, flight.request, keys, spec, by_text=not caches.is_exact(entry.slot))
        outbox.changed(entry.id)
        self._fleet.replicas.expect(
            entry,
            WorkerShare(1, flight.sequences, flight.prefill_tokens, flight.kv_tokens, 1, flight.remaining_tokens),
        )

    def _flight(self, request_id: str) -> Flight:
        flight = self.flights.get(request_id)
        if flight is None:
            raise LedgerError(f"request {request_id} is not in flight: never admitted, or ended already")
        return flight

    def _running(self, request_id: str) -> tuple[Flight, WorkerEntry]:
        flight = self._flight(request_id)
        if flight.entry is None:
            raise LedgerError(f"request {request_id} is not at a worker")
        return flight, flight.entry


def _tokens_to_learn_from(flight: Flight, output_tokens: int | None) -> int | None:
    """Tokens of an answer, where those not reported yet are a token a step; else None."""
    reported = flight.kv_tokens - flight.request.prompt_tokens
    if output_tokens is not None:  # those that another worker generated before are in the prompt here
        output_tokens = max(0, output_tokens - (flight.request.prompt_tokens - flight.admitted.prompt_tokens))
    if output_tokens is None or (reported and output_tokens - reported > _MOST_UNREPORTED_TOKENS):
        return None
    return output_tokens
