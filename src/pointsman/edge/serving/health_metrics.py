"""Metrics of workers' health, made from the ledger when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.core.ledger.health.changes import HealthCounts
from pointsman.core.ledger.health.facts import Known
from pointsman.core.ledger.health.standing import Position
from pointsman.core.ledger.snapshot import FleetSnapshot
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.telemetry import names

_NUMBER = {Known.YES: 1.0, Known.NO: 0.0, Known.UNKNOWN: -1.0}
_STANDING = {Position.TRUSTED: 0.0, Position.SUSPECT: 1.0, Position.OUT: 2.0, Position.TRIAL: 3.0}


class HealthCollector(Collector):
    """Registered with a prometheus_client registry; reads the state at every scrape."""

    def __init__(self, snapshot: Callable[[], FleetSnapshot], counts: Callable[[], HealthCounts]) -> None:
        self._snapshot = snapshot
        self._counts = counts

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        workers, counts = self._snapshot().workers, self._counts()
        facts = [
            ((worker.id, fact), _NUMBER[said.state])
            for worker in workers
            for fact, said in (
                ("live", worker.health.live),
                ("ready", worker.health.ready),
                ("serving", worker.health.serving),
            )
        ]
        yield gauge(names.WORKER_HEALTH, ("worker", "fact"), facts)
        yield gauge(names.WORKER_STANDING, ("worker",), [((w.id,), _STANDING[w.health.position]) for w in workers])
        yield gauge(names.WORKER_KEPT, ("worker",), [((w.id,), float(w.health.kept)) for w in workers])
        memory = [((w.id,), w.gpu_memory) for w in workers if w.gpu_memory is not None]
        yield gauge(names.WORKER_GPU_MEMORY, ("worker",), memory)
        yield counter(
            names.HEALTH_CHANGES,
            ("worker", "what", "state", "cause"),
            (((worker, what, state, cause.value), n) for (worker, what, state, cause), n in counts.changes.items()),
        )
        yield counter(names.HEALTH_CHANGES_LOST, (), [((), counts.changes_lost)])
        yield counter(
            names.CANARIES,
            ("worker", "result"),
            (((worker, result.value), n) for (worker, result), n in counts.canaries.items()),
        )
        took = [((w.id,), w.health.canary.total_ms / 1000.0) for w in workers if w.health.canary.total_ms is not None]
        yield gauge(names.CANARY_TIME, ("worker",), took)
