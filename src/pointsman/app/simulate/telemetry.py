"""Telemetry: what engines say of themselves: health and load now and then, tokens and KV events as they come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pointsman.app.simulate.events import EventHeap, Rank
from pointsman.app.simulate.front_ends import Told
from pointsman.app.simulate.setup import Setup
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.engine_model.events import BlockRemoved, BlockStored, KvEvent
from pointsman.core.ledger import events as ev
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.worker import WorkerId

PROBES_EVERY_MS = 5_000.0
"""How often an engine's health is read where its load is read before each decision."""


class Telemetry:
    """Tells the ledger. KV events come as keys: the hashes of modelled engines are the keys of the blocks."""

    def __init__(self, heap: EventHeap, ledger: Told, setup: Setup, spec: KeySpec) -> None:
        self._heap = heap
        self._ledger = ledger
        self._spec = spec
        self._kv_events = setup.kv_events
        self._before_each_decision = setup.metrics_every_ms == 0
        self.every_ms = setup.metrics_every_ms or PROBES_EVERY_MS

    def joined(self, worker: ModelledWorker, now_ms: float) -> None:
        """A process is up: it joins, answers its first probe, and its feed of KV events begins at its start."""
        apply = self._ledger.apply
        apply(ev.WorkerJoined(worker.spec, now_ms))
        self.read(worker, now_ms)
        if self._kv_events:
            apply(ev.KvFeedChanged(worker.id, now_ms, ev.KvFeedState.COMPLETE, "modelled"))

    def read(self, worker: ModelledWorker, now_ms: float) -> None:
        """A probe. Nobody knows of a worker that never joined."""
        if worker.alive:
            self._ledger.apply(ev.HealthRead(worker.id, now_ms, True, True, "modelled"))
            self._load(worker, now_ms)
        elif worker.incarnation:
            self._ledger.apply(ev.HealthRead(worker.id, now_ms, False, False, "connection refused"))

    def catch_up(self, workers: Iterable[ModelledWorker], now_ms: float) -> None:
        """Before a decision: runs of many steps are told of up to the step that they are in, as if each were one.

        Where loads are read before each decision, those of all workers that did anything since they were read last.
        """
        for worker in workers:
            if worker.in_run:
                worker.look(now_ms)
                self.tokens(worker, now_ms)
                self.blocks(worker)
            if self._before_each_decision and worker.alive and (worker.unread or worker.end_ms < math.inf):
                self._load(worker, now_ms)

    def tokens(self, worker: ModelledWorker, now_ms: float) -> None:
        """Answers that go on are reported every so many tokens."""
        for flight, tokens in worker.reports():
            self._ledger.apply(ev.Progress(flight.request.id, now_ms, tokens))

    def blocks(self, worker: ModelledWorker) -> None:
        """What an engine's cache gained and lost is on its way, or there already."""
        now_ms = self._heap.now_ms
        for announcement in worker.take_announcements():
            worker.announcements.append(announcement)
            if announcement[0] > now_ms:
                self._heap.push(announcement[0], Rank.KV, self._hear, worker)
        self._hear(worker)

    def _hear(self, worker: ModelledWorker) -> None:
        """Batches that are due, in their order, whatever the order of simultaneous events."""
        waiting, now_ms = worker.announcements, self._heap.now_ms
        while waiting and waiting[0][0] <= now_ms:
            self._apply_blocks(worker.id, waiting.popleft()[1], now_ms)

    def _load(self, worker: ModelledWorker, now_ms: float) -> None:
        worker.unread = False
        worker.look(now_ms)
        engine = worker.engine
        self._ledger.apply(
            ev.MetricsRead(
                worker.id, now_ms, engine.running, engine.waiting, engine.kv_use, worker.spec.kv_capacity_tokens
            )
        )
        self._ledger.apply(ev.GpuRead(worker.id, now_ms, worker.busy(now_ms)))

    def _apply_blocks(self, worker: WorkerId, events: Sequence[KvEvent], now_ms: float) -> None:
        apply = self._ledger.apply
        for event in events:
            if isinstance(event, BlockStored):
                hashes = event.block_hashes
                medium = event.medium.lower()
                apply(ev.BlocksStored(worker, now_ms, hashes, None, b"", self._spec, medium, keys=hashes))
            elif isinstance(event, BlockRemoved):
                apply(ev.BlocksRemoved(worker, now_ms, event.block_hashes, event.medium.lower()))
            else:
                apply(ev.BlocksCleared(worker, now_ms))
