"""Placing: finds workers for a request, as the live front end does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.app.simulate.flight import Flight
from pointsman.app.simulate.front_ends import Decides
from pointsman.app.simulate.outcome import Status
from pointsman.app.simulate.telemetry import Telemetry
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.ledger import events as ev
from pointsman.core.model.fault import Fault
from pointsman.core.model.plan import Aggregate, Pull, answering
from pointsman.core.model.worker import WorkerId

MAX_ATTEMPTS = 3
"""Workers that are tried before a request fails because none could be reached; the live front end's figure."""
REFUSED = "connection refused"


@dataclass(frozen=True, slots=True)
class Placed:
    """Who does what of a request."""

    worker: ModelledWorker
    """That answers. Where another one computes the prompt, it is not asked for anything yet, and may be gone."""
    prefill: ModelledWorker | None = None
    """That computes the prompt for it."""
    source: ModelledWorker | None = None
    """That holds the beginning of the prompt for it."""
    tokens: int = 0
    """How much of it."""


class Placing:
    """Decides for admitted requests. Whatever comes of it, the ledger knows."""

    def __init__(
        self, front_end: Decides, telemetry: Telemetry, workers: Sequence[ModelledWorker], *, fallback_to_local: bool
    ) -> None:
        self._front_end = front_end
        self._ledger = front_end.ledger
        self._telemetry = telemetry
        self._workers = workers
        self._by_id: dict[WorkerId, ModelledWorker] = {worker.id: worker for worker in workers}
        self._fallback = fallback_to_local

    def place(self, flight: Flight, now_ms: float) -> Placed | Status:
        """The workers, to which it is dispatched; or how the request ended. Raises PolicyError."""
        request = flight.request
        for _ in range(MAX_ATTEMPTS):
            self._telemetry.catch_up(self._workers, now_ms)
            plan = self._front_end.decide(request, flight.tried, now_ms)
            chosen = None if plan is None else answering(plan)
            if plan is None or chosen is None:
                self._ledger.apply(ev.Failed(request.id, now_ms, "no worker can take the request"))
                return Status.REJECTED
            worker = self._by_id[chosen]
            prefill = None if isinstance(plan, Aggregate) else self._by_id[plan.prefill]
            if prefill is not None and not prefill.alive:
                self._ledger.apply(ev.PrefillFailed(request.id, now_ms, REFUSED, Fault.UNREACHABLE))
                if not self._fallback:
                    self._ledger.apply(ev.Failed(request.id, now_ms, "its prompt could not be computed elsewhere"))
                    return Status.FAILED
                prefill = None
            pull = plan.pull if isinstance(plan, Aggregate) else None
            if prefill is not None or worker.alive:
                return self._placed(worker, prefill, pull)
            flight.tried.add(chosen)
            self._ledger.apply(ev.AttemptFailed(request.id, now_ms, REFUSED, Fault.UNREACHABLE))
        self._ledger.apply(ev.Failed(request.id, now_ms, "no worker could be reached"))
        return Status.FAILED

    def _placed(self, worker: ModelledWorker, prefill: ModelledWorker | None, pull: Pull | None) -> Placed:
        source = None if pull is None else self._by_id[pull.source]
        return Placed(worker, prefill, source, 0 if pull is None else pull.tokens)
