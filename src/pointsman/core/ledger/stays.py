"""Stays: what a request has at one worker, from when it is sent there until it is gone from there.

A request has one stay at the worker that answers it, and another one where that prompt is computed elsewhere.
"""

from __future__ import annotations

from pointsman.core.ledger import promises
from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.expectations import Expectations
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.outbox import Outbox
from pointsman.core.model.replica import WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column


class Stays:
    """Owned by the ledger's requests. What a stay added to a worker is in its flight, and its end takes back that."""

    def __init__(self, fleet: Fleet, expectations: Expectations) -> None:
        self._fleet = fleet
        self._expectations = expectations
        self.outbox: Outbox | None = None
        """What other front ends have to be told; None: nobody asked for it."""
        self._sequence = 0

    def begin(
        self,
        flight: Flight,
        entry: WorkerEntry,
        request: Request,
        at_ms: float,
        cached_tokens: int,
        *,
        exact: bool,
        decodes: bool,
        given_tokens: int | None = None,
    ) -> None:
        """It is sent to a worker that is thought to hold `cached_tokens` of it.

        `given_tokens`: leading tokens of which the KV comes from another worker; it computes what is beyond.
        """
        self._sequence += 1
        flight.request = request
        flight.entry = entry
        flight.dispatched_ms = at_ms
        flight.cached_tokens = min(cached_tokens, request.prompt_tokens)
        flight.exact = exact
        flight.kv_tokens = request.prompt_tokens
        flight.started = False
        given = given_tokens is not None
        had = flight.cached_tokens if given_tokens is None else max(flight.cached_tokens, given_tokens)
        flight.prefill_tokens = request.prompt_tokens - had
        computes = not given or flight.prefill_tokens > 0
        flight.text_before = self._fleet.sent(
            entry, request, flight.cached_tokens, at_ms, exact=exact, computes=computes
        )
        entry.flights[request.id] = flight
        cells = self._fleet.table.cells
        flight.sequences = request.sequences
        cells[Column.RUNNING, entry.slot] += flight.sequences
        cells[Column.PREFILL_TOKENS, entry.slot] += flight.prefill_tokens
        cells[Column.KV_TOKENS, entry.slot] += flight.kv_tokens
        promises.dispatched(cells, entry.slot, flight, self._expectations.expected(request) if decodes else None)
        flight.adapter_missing = None
        if request.model in entry.spec.adapters:
            flight.adapter_missing = None if given else request.model not in entry.adapters
            entry.adapters.used(request.model)
        cells[Column.LAST_DISPATCH, entry.slot] = self._sequence
        if cells[Column.QUEUED, entry.slot]:
            cells[Column.QUEUED, entry.slot] += 1
        flight.ahead_tokens = int(cells[Column.PREFILL_TOKENS, entry.slot])
        if entry.health.standing.left_out:
            self._fleet.health.dispatched(entry, request.id)
        if self.outbox is not None:
            self._tell_sent(self.outbox, flight, entry)
        flight.elsewhere = flight.unwatched = given
        if given:
            flight.cached_tokens = had
        elif entry.watch is not None:
            entry.watch.started(request, at_ms, flight.cached_tokens)

    def watch(self, flight: Flight, entry: WorkerEntry, at_ms: float) -> None:
        """From now on what it takes here teaches the worker's step times, if that is not so already."""
        if flight.unwatched:
            flight.unwatched = False
            if entry.watch is not None:
                entry.watch.started(flight.request, at_ms, flight.cached_tokens)

    def unwatch(self, flight: Flight, entry: WorkerEntry, at_ms: float, output_tokens: int | None = None) -> None:
        """It teaches no more."""
        if not flight.unwatched:
            flight.unwatched = True
            if entry.watch is not None:
                entry.watch.ended(flight.request.id, at_ms, output_tokens)

    def came(self, flight: Flight, entry: WorkerEntry, at_ms: float) -> None:
        """What another worker gives is here: from now on the worker computes, and is waited for."""
        flight.elsewhere = False
        flight.dispatched_ms = at_ms
        self.watch(flight, entry, at_ms)

    def first_token(self, flight: Flight, entry: WorkerEntry, at_ms: float, *, seen: bool = True) -> None:
        """Its first token, its whole answer, or that its prompt is computed, came; `seen`: at this very moment."""
        flight.started = True
        cells = self._fleet.table.cells
        cells[Column.PREFILL_TOKENS, entry.slot] -= flight.prefill_tokens
        promises.first_token(cells, entry.slot, flight)
        if seen:
            self._expectations.learn_adapter_load(flight, entry, at_ms)
        flight.prefill_tokens = 0
        self.changed(entry)
        if not seen:
            return
        if not entry.gone:
            self._fleet.health.first_token(entry, flight, at_ms)
        if entry.watch is not None and flight.request.streamed:
            # At once: another worker computed the prompt.
            entry.watch.first_token(flight.request.id, at_ms, computed=at_ms > flight.dispatched_ms)

    def computes_after_all(self, flight: Flight, entry: WorkerEntry, at_ms: float, cached_tokens: int) -> None:
        """Nothing comes from another worker: it has to compute all but these tokens, from now on."""
        cells = self._fleet.table.cells
        self.unwatch(flight, entry, at_ms)
        prefill_tokens = flight.request.prompt_tokens - cached_tokens
        cells[Column.PREFILL_TOKENS, entry.slot] += prefill_tokens - flight.prefill_tokens
        flight.prefill_tokens, flight.cached_tokens = prefill_tokens, cached_tokens
        flight.ahead_tokens = int(cells[Column.PREFILL_TOKENS, entry.slot])
        self.came(flight, entry, at_ms)
        self.changed(entry)

    def end(self, flight: Flight, entry: WorkerEntry) -> None:
        """It is gone from there, however."""
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
        self.changed(entry)
        self._fleet.released(entry)

    def forget_unless_started(self, flight: Flight, entry: WorkerEntry) -> None:
        """A request that never got a first token left nothing that one could count on in the worker's cache."""
        if not flight.started:
            others = [other.request for other in entry.flights.values() if other is not flight]
            gone = self._fleet.caches.taken_back(entry.slot, flight.request, flight.text_before, others)
            if self.outbox is not None and not entry.gone:
                self.outbox.taken_back(entry.id, flight.request, *gone)

    def changed(self, entry: WorkerEntry) -> None:
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
