"""Legs: what requests have at other workers than those that answer them, where KV is moved between the two.

Either another worker computes the whole prompt (its *leg*), keeps the KV and gives it away, or whoever computes the
prompt fetches the beginning of it from a worker that holds it (a *pull*). Both are followed by a transfer.
"""

from __future__ import annotations

from dataclasses import replace

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.entries import Flight, FlightLegs, Totals, Transfer, WorkerEntry
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.stays import Stays
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column


class Legs:
    """Owned by the ledger's requests. All that it added to any worker is free when the request is gone."""

    def __init__(self, fleet: Fleet, stays: Stays, totals: Totals) -> None:
        self._fleet = fleet
        self._stays = stays
        self._totals = totals

    # ---- what happens to them

    def begin(self, flight: Flight, entry: WorkerEntry, request: Request, event: ev.Dispatched) -> None:
        """It goes to `entry`, which answers, and to others. Raises LedgerError, with nothing changed."""
        prefill = event.prefill
        elsewhere = None if prefill is None else self._fleet.entry(prefill.worker)
        source = None if event.pull is None else self._fleet.entry(event.pull.source)
        if elsewhere is entry:
            raise LedgerError(f"request {request.id} can't have its prefill apart at {entry.id}, which decodes it, too")
        if source is not None and source is (elsewhere or entry):
            raise LedgerError(f"request {request.id} can't fetch KV from {source.id}, which computes its prompt")
        pulled = None if event.pull is None else min(event.pull.tokens, request.prompt_tokens)
        legs = flight.legs = FlightLegs(event.cached_tokens, event.exact)
        computing = flight
        if elsewhere is None or prefill is None:
            self._stay(flight, entry, request, event, given_tokens=pulled)
        else:
            self._stay(flight, entry, request, event, given_tokens=request.prompt_tokens)
            computing = legs.prefill = Flight(request, flight.admitted)
            # Its own client is the front end, which waits for all of its one answer.
            asked = replace(request, sequences=1, streamed=True)
            self._stays.begin(
                computing,
                elsewhere,
                asked,
                event.at_ms,
                prefill.cached_tokens,
                exact=prefill.exact,
                decodes=False,
                given_tokens=pulled,
            )
        if source is not None and pulled is not None:
            fetched = max(0, pulled - (event.cached_tokens if prefill is None else prefill.cached_tokens))
            self._moves(legs, source, computing, fetched)

    def _stay(
        self, flight: Flight, entry: WorkerEntry, request: Request, event: ev.Dispatched, *, given_tokens: int | None
    ) -> None:
        cached, exact = event.cached_tokens, event.exact
        self._stays.begin(
            flight, entry, request, event.at_ms, cached, exact=exact, decodes=True, given_tokens=given_tokens
        )

    def prefill_ended(self, flight: Flight, event: ev.PrefillEnded) -> None:
        """The prompt is computed, and its KV may be fetched from now on, or was already."""
        legs = self._legs(flight, event)
        leg = legs.prefill
        if leg is None or leg.entry is None or legs.prefill_told:
            raise LedgerError(f"request {event.request_id} has no prefill under way at another worker")
        legs.prefill_told = True
        if not leg.started:
            self._computed(flight, legs, leg, event.at_ms, seen=True)
        pulled = legs.transfer is not None and legs.transfer.flight is leg
        if event.prompt_tokens is not None and event.cached_tokens is not None and not pulled:
            leg.entry.drift.observe(event.prompt_tokens, leg.cached_tokens, event.cached_tokens, leg.exact)
            for totals in (leg.entry.totals, self._totals):
                totals.reported_cached_tokens += event.cached_tokens
                totals.reported_prompt_tokens += event.prompt_tokens
                totals.predicted_cached_tokens += leg.cached_tokens

    def prefill_failed(self, flight: Flight, event: ev.PrefillFailed) -> None:
        """Nothing comes from other workers: the one that answers computes all of it."""
        legs, entry = self._legs(flight, event), flight.entry
        if legs.failed or flight.started or entry is None:
            raise LedgerError(f"request {event.request_id} has no leg that could fail: {event.reason}")
        leg, transfer = legs.prefill, legs.transfer
        source = leg.entry if transfer is None and leg is not None else None if transfer is None else transfer.source
        if event.no_kv and source is not None:
            self._fleet.kv_failed(source, entry, event.at_ms)
        to_blame, there = None if transfer is None else transfer.source, flight
        if leg is not None:
            to_blame, there = leg.entry, leg
        if to_blame is not None:
            self._fleet.request_failed(to_blame, there, event)
            if leg is not None:
                for totals in (to_blame.totals, self._totals):
                    totals.prefills_failed += 1
        self._free(legs, event.at_ms)
        legs.failed = True
        flight.exact = legs.exact
        cached = min(legs.own_cached_tokens, flight.request.prompt_tokens)
        self._stays.computes_after_all(flight, entry, event.at_ms, cached)

    def transfer_ended(self, flight: Flight, event: ev.TransferEnded) -> None:
        """The KV is where it is needed. What is told of a transfer may come after the first token, too."""
        legs = self._legs(flight, event)
        pull_under_way = legs.transfer is not None and legs.transfer.flight is legs.prefill and not legs.transfer.told
        if not pull_under_way:
            self._imply_computed(flight, legs, event.at_ms)
        transfer = legs.transfer
        if transfer is None or transfer.told or legs.failed:
            raise LedgerError(f"request {event.request_id} has no transfer under way")
        transfer.told = True
        others = transfer.others
        if transfer.under_way:
            self._arrived(transfer, event.at_ms)
            others = (others + _sharing(self._fleet, transfer.source, transfer.target)) // 2
        self._fleet.transferred(transfer.source, transfer.target, event, transfer.token_bytes, others)
        self._count(transfer, event)

    def first_token(self, flight: Flight, at_ms: float) -> None:
        """The worker that answers has all that it needs, whoever said so."""
        legs = flight.legs
        if legs is None or legs.failed:
            return
        self._imply_computed(flight, legs, at_ms)
        if legs.transfer is not None and legs.transfer.under_way:
            self._arrived(legs.transfer, at_ms)

    def ended(self, flight: Flight, at_ms: float, *, answered: bool) -> None:
        """The request is gone from the worker that answers, so nothing of it is needed anywhere."""
        legs = flight.legs
        if legs is None:
            return
        if answered:
            self.first_token(flight, at_ms)
        self._free(legs, at_ms)
        flight.legs = None

    # ---- inside

    def _legs(self, flight: Flight, event: ev.LegEvent) -> FlightLegs:
        if flight.legs is None:
            raise LedgerError(
                f"request {event.request_id} is at one worker only: no {type(event).__name__} is expected"
            )
        return flight.legs

    def _imply_computed(self, flight: Flight, legs: FlightLegs, at_ms: float) -> None:
        """Whatever comes of its KV says that the prompt is computed, where nobody said that before."""
        leg = legs.prefill
        if leg is not None and not leg.started and leg.entry is not None:
            self._computed(flight, legs, leg, at_ms, seen=False)

    def _computed(self, flight: Flight, legs: FlightLegs, leg: Flight, at_ms: float, *, seen: bool) -> None:
        """Its stay at the worker for prefill is over, its KV stays. `seen`: at this very moment."""
        entry = leg.entry
        assert entry is not None
        if legs.transfer is not None and legs.transfer.under_way:
            self._arrived(legs.transfer, at_ms)
        self._stays.first_token(leg, entry, at_ms, seen=seen)
        self._stays.unwatch(leg, entry, at_ms)
        if not entry.gone:
            self._fleet.health.answered(entry, leg, at_ms)
        for totals in (entry.totals, self._totals):
            totals.prefills += 1
        kept, leg.kv_tokens = leg.kv_tokens, 0
        moved = max(0, flight.request.prompt_tokens - legs.own_cached_tokens)
        self._moves(legs, entry, flight, moved, kept_tokens=kept)
        self._stays.end(leg, entry)
        if flight.entry is not None and not flight.request.streamed:
            self._stays.watch(flight, flight.entry, at_ms)

    def _moves(
        self, legs: FlightLegs, source: WorkerEntry, flight: Flight, tokens: int, *, kept_tokens: int = 0
    ) -> None:
        target = flight.entry
        assert target is not None
        others = _sharing(self._fleet, source, target)
        cells = self._fleet.table.cells
        token_bytes = int(cells[Column.KV_TOKEN_BYTES, source.slot])
        legs.transfer = Transfer(source, target, flight, tokens, token_bytes, others, kept_tokens)
        cells[Column.TRANSFERS_OUT, source.slot] += 1
        cells[Column.TRANSFERS_IN, target.slot] += 1
        source.gives.add(flight.request.id)
        self._stays.changed(source)
        self._stays.changed(target)

    def _arrived(self, transfer: Transfer, at_ms: float) -> None:
        self._stop(transfer)
        self._fleet.kv_worked(transfer.source, transfer.target)
        self._count(transfer, None)
        for totals in (transfer.source.totals, self._totals):
            totals.transfers_out += 1
        for totals in (transfer.target.totals, self._totals):
            totals.transfers_in += 1
        flight = transfer.flight
        if not flight.started:
            self._stays.came(flight, transfer.target, at_ms)

    def _stop(self, transfer: Transfer) -> None:
        """Nothing is moved, and nothing kept for that, any more."""
        transfer.under_way = False
        cells, source, target = self._fleet.table.cells, transfer.source, transfer.target
        cells[Column.TRANSFERS_OUT, source.slot] -= 1
        cells[Column.TRANSFERS_IN, target.slot] -= 1
        cells[Column.KV_TOKENS, source.slot] -= transfer.kept_tokens
        source.gives.discard(transfer.flight.request.id)
        self._stays.changed(source)
        self._stays.changed(target)
        self._fleet.released(source)

    def _free(self, legs: FlightLegs, at_ms: float) -> None:
        """Nothing is kept for it anywhere but where it is answered."""
        if legs.transfer is not None and legs.transfer.under_way:
            self._stop(legs.transfer)
        leg = legs.prefill
        if leg is not None and leg.entry is not None and not leg.started:
            self._stays.forget_unless_started(leg, leg.entry)
            self._stays.unwatch(leg, leg.entry, at_ms)
            self._stays.end(leg, leg.entry)
            leg.entry = None

    def _count(self, transfer: Transfer, told: ev.TransferEnded | None) -> None:
        """What was moved, in the totals: first what was thought, then what was told."""
        tokens = transfer.tokens if told is None or told.tokens is None else told.tokens
        size_bytes = None if told is None else told.size_bytes
        if size_bytes is None:
            size_bytes = tokens * transfer.token_bytes
        more_tokens, more_bytes = tokens - transfer.counted_tokens, size_bytes - transfer.counted_bytes
        transfer.counted_tokens, transfer.counted_bytes = tokens, size_bytes
        for totals in (transfer.target.totals, self._totals):
            totals.moved_tokens += more_tokens
            totals.moved_in_bytes += more_bytes
        for totals in (transfer.source.totals, self._totals):
            totals.moved_out_bytes += more_bytes


def _sharing(fleet: Fleet, source: WorkerEntry, target: WorkerEntry) -> int:
    """Transfers that are under way at one of the two ends, the busier one."""
    cells = fleet.table.cells
    return max(int(cells[Column.TRANSFERS_OUT, source.slot]), int(cells[Column.TRANSFERS_IN, target.slot]))
