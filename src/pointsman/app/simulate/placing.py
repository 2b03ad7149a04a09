"""Placing: finds a worker for a request, or for one stage of it, as the live front end does."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.app.simulate.front_ends import Decides
from pointsman.app.simulate.outcome import Status
from pointsman.app.simulate.telemetry import Telemetry
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.ledger import events as ev
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.stage import Stage
from pointsman.core.model.worker import WorkerId

MAX_ATTEMPTS = 3
"""Workers that are tried before a request fails because none could be reached; the live front end's figure."""


class Placing:
    """Decides for admitted requests. Whatever comes of it, the ledger knows."""

    def __init__(self, front_end: Decides, telemetry: Telemetry, workers: Sequence[ModelledWorker]) -> None:
        self._front_end = front_end
        self._ledger = front_end.ledger
        self._telemetry = telemetry
        self._workers = workers
        self._by_id: dict[WorkerId, ModelledWorker] = {worker.id: worker for worker in workers}

    def place(self, request: Request, stage: Stage, now_ms: float, tried: set[WorkerId]) -> ModelledWorker | Status:
        """The worker, to which it is dispatched; or how the request ended. Raises PolicyError."""
        for _ in range(MAX_ATTEMPTS):
            self._telemetry.catch_up(self._workers, now_ms)
            chosen = self._front_end.decide(request, stage, tried, now_ms)
            if chosen is None:
                self._ledger.apply(ev.Failed(request.id, now_ms, "no worker can take the request"))
                return Status.REJECTED
            worker = self._by_id[chosen]
            if worker.alive:
                return worker
            tried.add(chosen)
            self._ledger.apply(ev.AttemptFailed(request.id, now_ms, "connection refused", Fault.UNREACHABLE))
        self._ledger.apply(ev.Failed(request.id, now_ms, "no worker could be reached"))
        return Status.FAILED
