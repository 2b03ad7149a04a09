"""Legs: what of a request goes on at another worker than the one that answers, and the KV on its way between them.

A request whose prompt another worker computes goes there first. When its prompt is computed, that one holds the KV and
the worker that answers is asked: it reserves KV blocks, fetches what it does not hold over the links, computes the last
token of the prompt and goes on. A request whose beginning somebody holds goes to one worker, which fetches that part
and computes the rest. The KV is held until it has arrived. The ledger hears of each step when the live front end would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pointsman.app.simulate.events import EventHeap, Rank
from pointsman.app.simulate.flight import Flight, Leg
from pointsman.app.simulate.front_ends import Told
from pointsman.app.simulate.placing import MAX_ATTEMPTS, REFUSED, Placed
from pointsman.app.simulate.records import Records
from pointsman.app.simulate.stepping import Stepping
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.links import LinkNetwork
from pointsman.core.engine_model.sequence import Sequence as Computed
from pointsman.core.engine_model.sequence import SequenceState
from pointsman.core.ledger import events as ev
from pointsman.core.model.fault import Fault

OnAnswer = Callable[[Flight, bool], None]
"""Its worker is to answer a request now; True: it waits for KV first."""
OnFailed = Callable[[Flight, str], None]
"""A request fails, for this reason; its legs are gone."""
OnRefused = Callable[[Flight], None]
"""An engine refused a request: it ends."""


class Legs:
    """All legs and transfers of a simulation."""

    def __init__(
        self,
        heap: EventHeap,
        ledger: Told,
        stepping: Stepping,
        network: LinkNetwork,
        workers: Sequence[ModelledWorker],
        records: Records,
        *,
        fallback_to_local: bool,
        on_answer: OnAnswer,
        on_again: Callable[[Flight], None],
        on_failed: OnFailed,
        on_refused: OnRefused,
    ) -> None:
        """`on_again`: a request needs another decision."""
        self._heap = heap
        self._ledger = ledger
        self._stepping = stepping
        self._network = network
        self._workers = workers
        self._records = records
        self._fallback = fallback_to_local
        self._on_answer = on_answer
        self._on_again = on_again
        self._on_failed = on_failed
        self._on_refused = on_refused
        self._moving: dict[int, Flight] = {}
        self._timer = 0

    # ---- what a request begins with

    def start(self, flight: Flight, placed: Placed) -> None:
        """It was decided and dispatched: ask whoever has something to do first."""
        if placed.prefill is not None:
            self._compute(flight, placed.prefill)
        elif placed.source is None or self._hold(flight, placed.source, placed.tokens):
            self._on_answer(flight, flight.leg is not None)

    def _compute(self, flight: Flight, worker: ModelledWorker) -> None:
        leg = Leg(worker.number, f"{flight.request.id} prefill")
        self._stepping.interrupt(worker)
        try:
            worker.take_prefill(flight, leg.id)
        except RequestRefusedError:
            self._ledger.apply(ev.Refused(flight.request.id, self._heap.now_ms, 400))
            self._on_refused(flight)
            return
        flight.leg = leg
        self._stepping.wake(worker)

    def _hold(self, flight: Flight, source: ModelledWorker, tokens: int) -> bool:
        """Have the beginning of a prompt kept where it is; False: the request ended, as it may not be computed."""
        leg = Leg(source.number, f"{flight.request.id} held", pull=True)
        if source.alive:
            self._stepping.interrupt(source)
            leg.tokens = source.hold(flight, leg.id, tokens)
            self._stepping.wake(source)
        if leg.tokens:
            flight.leg = leg
            return True
        fault = None if source.alive else Fault.UNREACHABLE
        return self._came_to_nothing(flight, "nothing of it is held there" if source.alive else REFUSED, fault)

    def prefilled(self, flight: Flight, worker: ModelledWorker, cached_tokens: int) -> None:
        """The prompt is computed at another worker, which holds it now: ask the one that answers."""
        now_ms, records = self._heap.now_ms, self._records
        prompt_tokens = flight.asked.prompt_tokens
        worker.computed_prompt(prompt_tokens, cached_tokens)
        flight.cached_tokens = cached_tokens
        records.prefill_worker[flight.position] = worker.number
        records.prefilled_ms[flight.position] = now_ms
        self._ledger.apply(ev.PrefillEnded(flight.request.id, now_ms, prompt_tokens, cached_tokens))
        self._ask(flight, fetches=True)

    def _ask(self, flight: Flight, *, fetches: bool) -> None:
        """Ask the worker that answers, which was not asked for anything yet and may be gone."""
        worker = self._workers[flight.worker]
        if worker.alive:
            self._on_answer(flight, fetches)
            return
        self.drop(flight)
        flight.tried.add(worker.id)
        self._ledger.apply(ev.AttemptFailed(flight.request.id, self._heap.now_ms, REFUSED, Fault.UNREACHABLE))
        if len(flight.tried) < MAX_ATTEMPTS:
            self._on_again(flight)
        else:
            self._on_failed(flight, "no worker could be reached")

    # ---- KV on its way

    def reserved(self, worker: ModelledWorker, sequences: list[Computed]) -> None:
        """These got KV blocks: fetch their contents."""
        now_ms = self._heap.now_ms
        for sequence in sequences:
            flight = worker.flights[sequence.request.id]
            leg = flight.leg
            if leg is None:
                self._go_on(worker, sequence, sequence.still_computed)
                continue
            goal = _goal(leg, sequence)
            moved = max(0, goal - sequence.still_computed) if leg.pull else sequence.transfer_tokens or 0
            if not moved:
                self._arrived(flight, leg, 0)
                continue
            source = self._workers[leg.other]
            leg.began_ms = now_ms
            leg.moved_tokens = moved
            size_bytes = moved * source.group.profile.kv_bytes_per_token
            leg.moving = self._network.start(now_ms, source.number, worker.number, size_bytes)
            self._moving[leg.moving] = flight
        self._set_timer()

    def _arrived(self, flight: Flight, leg: Leg, tokens: int) -> None:
        """So much was fetched; the rest of what there is to fetch was there already."""
        now_ms, records, request_id = self._heap.now_ms, self._records, flight.request.id
        if tokens:
            size_bytes = tokens * self._workers[leg.other].group.profile.kv_bytes_per_token
            told = ev.TransferEnded(request_id, now_ms, tokens, size_bytes, now_ms - leg.began_ms)
            records.kv_arrived_ms[flight.position] = now_ms
            records.moved_tokens[flight.position] = tokens
        else:
            told = ev.TransferEnded(request_id, now_ms, tokens=0)
        self._ledger.apply(told)
        flight.leg = None
        self._let_go(leg)
        sequence = flight.sequence
        assert sequence is not None
        self._go_on(self._workers[flight.worker], sequence, _goal(leg, sequence))

    def _go_on(self, worker: ModelledWorker, sequence: Computed, tokens: int) -> None:
        self._stepping.interrupt(worker)
        worker.engine.fetched(sequence, max(tokens, sequence.still_computed))
        self._stepping.wake(worker)

    def _set_timer(self) -> None:
        self._timer += 1
        next_ms = self._network.next_end_ms()
        if next_ms is not None:
            at_ms = max(next_ms, self._heap.now_ms)
            self._heap.push(at_ms, Rank.STEP, self._some_ended, self._timer)

    def _some_ended(self, timer: int) -> None:
        if timer != self._timer:
            return
        for moving in self._network.advance(self._heap.now_ms):
            flight = self._moving.pop(moving)
            assert flight.leg is not None
            self._arrived(flight, flight.leg, flight.leg.moved_tokens)
        self._set_timer()

    # ---- what goes wrong

    def broke_off(self, flight: Flight, worker: ModelledWorker) -> None:
        """The worker that computed its prompt, or held KV for it, died: who answers computes it."""
        sequence = flight.sequence
        self._stop(flight)
        if not self._came_to_nothing(flight, f"{worker.id} broke off", Fault.UNREACHABLE):
            return
        if sequence is None:
            self._ask(flight, fetches=False)
        elif sequence.state is SequenceState.RESERVED:
            self._go_on(self._workers[flight.worker], sequence, sequence.still_computed)

    def _came_to_nothing(self, flight: Flight, reason: str, fault: Fault | None) -> bool:
        """False: it is not to be computed where it is answered, so it failed."""
        now_ms, request_id = self._heap.now_ms, flight.request.id
        self._records.fallback[flight.position] = True
        self._ledger.apply(ev.PrefillFailed(request_id, now_ms, reason, fault))
        if self._fallback:
            return True
        worker = self._workers[flight.worker]
        if worker.flights.pop(request_id, None) is not None:
            self._stepping.interrupt(worker)
            worker.engine.abort(request_id)
            self._stepping.wake(worker)
        flight.sequence = None
        self._on_failed(flight, f"KV could not be moved: {reason}")
        return False

    def drop(self, flight: Flight) -> None:
        """Who was to answer can't: nothing of it is needed at another worker any more."""
        leg = flight.leg
        if leg is not None:
            self._stop(flight)
            self._let_go(leg)

    def _stop(self, flight: Flight) -> None:
        """Its leg leads nowhere: nothing moves, and nothing came of the prompt elsewhere."""
        leg, flight.leg, flight.cached_tokens = flight.leg, None, None
        self._records.prefill_worker[flight.position] = -1
        if leg is not None and leg.moving is not None:
            del self._moving[leg.moving]
            self._network.cancel(self._heap.now_ms, leg.moving)
            self._set_timer()

    def _let_go(self, leg: Leg) -> None:
        other = self._workers[leg.other]
        if leg.id in other.legs:
            self._stepping.interrupt(other)
            other.let_go(leg.id)
            self._stepping.wake(other)


def _goal(leg: Leg, sequence: Computed) -> int:
    """Leading tokens of the prompt that are there once all was fetched; the last one is always computed."""
    last = sequence.prompt_length - 1
    return min(leg.tokens, last) if leg.pull else last
