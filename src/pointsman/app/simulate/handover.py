"""Handover: split requests, from the worker that computed the prompt to the one that decodes.

When the first token is there, the prefill is answered and its worker holds the KV. The decode is a request of its own
to the ledger, decided then; its worker reserves KV blocks, fetches what it does not hold over the links, and goes on
with the second token. The KV is held until it has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from pointsman.app.simulate.events import EventHeap, Rank
from pointsman.app.simulate.flight import Flight
from pointsman.app.simulate.front_ends import Told
from pointsman.app.simulate.outcome import Status
from pointsman.app.simulate.placing import Placing
from pointsman.app.simulate.records import Records
from pointsman.app.simulate.setup import Setup
from pointsman.app.simulate.stepping import Stepping
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.links import LinkNetwork
from pointsman.core.engine_model.sequence import Sequence as Computed
from pointsman.core.ledger import events as ev
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.stage import Stage
from pointsman.core.timing.links import Link, network_link

OnEnd = Callable[[Flight, Status], None]


class Handover:
    """All transfers of a simulation."""

    def __init__(
        self,
        heap: EventHeap,
        ledger: Told,
        placing: Placing,
        stepping: Stepping,
        network: LinkNetwork,
        workers: Sequence[ModelledWorker],
        records: Records,
        on_end: OnEnd,
    ) -> None:
        self._heap = heap
        self._ledger = ledger
        self._placing = placing
        self._stepping = stepping
        self._network = network
        self._workers = workers
        self._records = records
        self._on_end = on_end
        self._moving: dict[int, Flight] = {}
        self._timer = 0

    def prefilled(self, flight: Flight, worker: ModelledWorker) -> None:
        """The prompt is computed: find who decodes. The ledger has heard that the prefill is answered."""
        now_ms = self._heap.now_ms
        self._records.prefill_worker[flight.position] = worker.number
        flight.holder, flight.held_id = worker.number, flight.request.id
        worker.held[flight.held_id] = flight
        flight.stage = Stage.DECODE
        flight.request = replace(flight.request, id=f"{flight.request.id} decode")
        self._ledger.apply(ev.Admitted(flight.request, now_ms))
        placed = self._placing.place(flight.request, Stage.DECODE, now_ms, set())
        if isinstance(placed, Status):
            self.release(flight)
            self._on_end(flight, Status.FAILED)  # it had its first token: the answer breaks off
            return
        # Nothing of it waits to be computed.
        self._ledger.apply(ev.FirstToken(flight.request.id, now_ms))
        self._records.worker[flight.position] = placed.number
        self._stepping.interrupt(placed)
        try:
            placed.take(flight)
        except RequestRefusedError:
            self._ledger.apply(ev.Refused(flight.request.id, now_ms, 400))
            self.release(flight)
            self._on_end(flight, Status.FAILED)
            return
        self._stepping.wake(placed)

    def reserved(self, worker: ModelledWorker, sequences: list[Computed]) -> None:
        """These got KV blocks: fetch their contents."""
        for sequence in sequences:
            flight = worker.flights[sequence.request.id]
            tokens = sequence.transfer_tokens or 0
            if not tokens:
                self._arrived(flight)
                continue
            source = self._workers[flight.holder]
            size_bytes = tokens * source.group.profile.kv_bytes_per_token
            moving = self._network.start(self._heap.now_ms, source.number, worker.number, size_bytes)
            self._moving[moving] = flight
        self._set_timer()

    def release(self, flight: Flight) -> None:
        """Nobody needs the KV that is held for it any more."""
        if flight.holder < 0:
            return
        holder = self._workers[flight.holder]
        flight.holder = -1
        if holder.held.pop(flight.held_id, None) is not None:
            self._stepping.interrupt(holder)
            holder.engine.release_held(flight.held_id)
            self._stepping.wake(holder)

    def lost(self, flight: Flight) -> None:
        """One of its workers died: stop what goes on at the other and between them."""
        for moving, moved in list(self._moving.items()):
            if moved is flight:
                del self._moving[moving]
                self._network.cancel(self._heap.now_ms, moving)
        self._set_timer()
        self.release(flight)
        worker = self._workers[self._records.worker[flight.position]]
        if worker.flights.pop(flight.request.id, None) is not None:
            self._stepping.interrupt(worker)
            worker.engine.abort(flight.request.id)
            self._stepping.wake(worker)

    def _arrived(self, flight: Flight) -> None:
        worker = self._workers[self._records.worker[flight.position]]
        self._records.kv_arrived_ms[flight.position] = self._heap.now_ms
        self._stepping.interrupt(worker)
        worker.arrived(flight)
        self._stepping.wake(worker)
        self.release(flight)

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
            self._arrived(self._moving.pop(moving))
        self._set_timer()


def link_network(setup: Setup, workers: Sequence[ModelledWorker]) -> LinkNetwork:
    """The setup's link for all workers, else each one's share of the network that is usual for its GPUs."""
    if setup.link is not None:
        return LinkNetwork(setup.link, between=setup.links_between)
    links: dict[int, Link] = {}
    for worker in workers:
        profile = worker.group.profile
        # Nobody can say what network a GPU has that is not known: LinkNetwork's default then.
        with suppress(ConfigError):
            links[worker.number] = network_link(profile.gpu, profile.tensor_parallel)
    return LinkNetwork(links=links, between=setup.links_between)
