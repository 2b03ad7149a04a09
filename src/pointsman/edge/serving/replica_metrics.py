"""Prometheus metrics of front ends among others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.core.ledger.snapshot import FleetSnapshot
from pointsman.edge.cluster.replicas.replication import Replication
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.telemetry import names


class ReplicaCollector(Collector):
    """Reads the state at every scrape. A front end that is alone has no series. Replicas are no labels: they come and
    go without end."""

    def __init__(self, replication: Replication, snapshot: Callable[[], FleetSnapshot]) -> None:
        self._replication = replication
        self._snapshot = snapshot

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        replication = self._replication
        if replication.alone:
            return
        others = replication.statuses()
        known = sum(other.complete for other in others)
        by_state = [(("complete",), float(known)), (("asked",), float(len(others) - known))]
        yield gauge(names.REPLICAS, ("state",), by_state)
        messages = (((kind,), float(count)) for kind, count in sorted(replication.messages().items()))
        yield counter(names.REPLICA_MESSAGES, ("kind",), messages)
        refused = (((where,), float(count)) for where, count in sorted(replication.refused_connections().items()))
        yield counter(names.REPLICA_REFUSED, ("where",), refused)
        yield counter(names.REPLICA_NOT_TOLD, (), [((), float(replication.prompts_not_told()))])
        workers = self._snapshot().workers
        yield gauge(
            names.WORKER_OTHERS, ("worker",), (((worker.id,), float(worker.others.requests)) for worker in workers)
        )
