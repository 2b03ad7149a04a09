"""Requests: the life of each, from its admission to its one end, and what it has at its worker meanwhile."""

from __future__ import annotations

from pointsman.core.ledger import events as ev
from pointsman.core.ledger import promises
from pointsman.core.ledger.entries import Flight, Totals, WorkerEntry
from pointsman.core.ledger.expectations import Expectations
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.legs import Legs
from pointsman.core.ledger.outbox import Outbox
from pointsman.core.ledger.retry_budget import RetryBudget
from pointsman.core.ledger.stays import Stays
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.view import Column
from pointsman.core.model.worker import Role

_MOST_UNREPORTED_TOKENS = 64
"""Tokens that can be new at the end of an answer of which some were reported; more: it came in larger pieces."""


class Requests:
    """Owned by the ledger. What a request added to a worker is in its flight, and its release takes back just that."""

    def __init__(self, fleet: Fleet, expectations: Expectations, retry_share: float) -> None:
        self._fleet = fleet
        self._expectations = expectations
        self.flights: dict[str, Flight] = {}
        self.waiting = 0
        self.retries = RetryBudget(retry_share)
        self.totals = Totals()
        self._stays = Stays(fleet, expectations)
        self._legs = Legs(fleet, self._stays, self.totals)

    @property
    def outbox(self) -> Outbox | None:
        """What other front ends have to be told; None: nobody asked for it."""
        return self._stays.outbox

    def tell_others(self, outbox: Outbox) -> None:
        """From now on it is kept there."""
        self._stays.outbox = outbox

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
        """It goes to a worker, or to several, of which one answers."""
        flight = self._flight(event.request_id)
        if flight.entry is not None:
            raise LedgerError(f"request {event.request_id} is at {flight.entry.id} already")
        entry = self._fleet.entry(event.worker)
        request = event.rest or flight.admitted
        if event.prefill is None and event.pull is None:
            decodes = entry.spec.role is not Role.PREFILL
            cached, exact = event.cached_tokens, event.exact
            self._stays.begin(flight, entry, request, event.at_ms, cached, exact=exact, decodes=decodes)
        else:
            self._legs.begin(flight, entry, request, event)
        self.waiting -= 1
        entry.totals.dispatched += 1
        self.totals.dispatched += 1

    def prefill_ended(self, event: ev.PrefillEnded) -> None:
        """Another worker computed its prompt."""
        self._legs.prefill_ended(self._running(event.request_id)[0], event)

    def prefill_failed(self, event: ev.PrefillFailed) -> None:
        """Nothing comes from another worker after all."""
        self._legs.prefill_failed(self._running(event.request_id)[0], event)

    def transfer_ended(self, event: ev.TransferEnded) -> None:
        """Its KV is where it is needed."""
        self._legs.transfer_ended(self._running(event.request_id)[0], event)

    def first_token(self, event: ev.FirstToken) -> None:
        """Its first token, or its whole answer, came."""
        flight, entry = self._running(event.request_id)
        if flight.started:
            raise LedgerError(f"request {event.request_id} had its first token already")
        if flight.legs is not None:
            self._legs.first_token(flight, event.at_ms)
        self._stays.first_token(flight, entry, event.at_ms)

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
        self._stays.changed(entry)
        if entry.health.token_seen(event.at_ms) and not entry.gone:
            self._fleet.health.moved(entry)

    def attempt_failed(self, event: ev.AttemptFailed) -> None:
        """Its worker failed it; it waits for another one."""
        flight, entry = self._running(event.request_id)
        if not event.of_other:
            self._fleet.request_failed(entry, flight, event)
        self._stays.forget_unless_started(flight, entry)
        if flight.legs is not None:
            self._legs.ended(flight, event.at_ms, answered=False)
        self._stays.end(flight, entry)
        self._stays.unwatch(flight, entry, event.at_ms)
        flight.entry = None
        self.waiting += 1
        entry.totals.attempts_failed += 1
        self.totals.attempts_failed += 1
        if not flight.started and event.fault is not None:
            self.retries.take(event.at_ms)

    def finished(self, event: ev.Finished) -> None:
        """It was answered."""
        flight, entry = self._running(event.request_id)
        computed = True
        if flight.legs is not None:
            computed = flight.legs.failed
            self._legs.ended(flight, event.at_ms, answered=True)
        self._stays.unwatch(flight, entry, event.at_ms, _tokens_to_learn_from(flight, event.output_tokens))
        if not entry.gone:
            self._fleet.health.answered(entry, flight, event.at_ms)
        self._end(event.request_id, flight)
        self._expectations.learn_ratio(flight.admitted, event.prompt_tokens)
        self._expectations.learn_length(flight, entry, event)
        # Of what other workers gave, the engine's word says nothing of what it held itself.
        reported = event.cached_tokens if computed else None
        if reported is not None and event.prompt_tokens is not None:
            entry.drift.observe(event.prompt_tokens, flight.cached_tokens, reported, flight.exact)
        for totals in (entry.totals, self.totals):
            totals.finished += 1
            totals.output_tokens += event.output_tokens or 0
            totals.prompt_tokens += event.prompt_tokens or 0
            if reported is not None and event.prompt_tokens is not None:
                totals.reported_cached_tokens += reported
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
            self._stays.forget_unless_started(flight, entry)
            if flight.legs is not None:
                self._legs.ended(flight, at_ms, answered=False)
            self._stays.unwatch(flight, entry, at_ms)
        self._end(request_id, flight)
        return [self.totals] if entry is None else [self.totals, entry.totals]

    def _end(self, request_id: str, flight: Flight) -> None:
        del self.flights[request_id]
        if flight.entry is None:
            self.waiting -= 1
        else:
            self._stays.end(flight, flight.entry)

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
