"""Metrics of the places where engines are found."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.serving.workers.engines import Engines
from pointsman.edge.telemetry import names


class DiscoveryCollector(Collector):
    """Registered with a prometheus_client registry; reads the state at every scrape."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        places = self._engines.statuses()
        connected = [((p.origin,), float(p.state is DiscoveryState.CONNECTED)) for p in places]
        yield gauge(names.DISCOVERY_CONNECTED, ("origin",), connected)
        yield gauge(names.DISCOVERY_ENGINES, ("origin",), [((p.origin,), p.engines) for p in places])
        yield gauge(names.DISCOVERY_KEPT, ("origin",), [((p.origin,), p.kept) for p in places])
        ignored = [((p.origin, reason), count) for p in places for reason, count in p.ignored_total]
        yield counter(names.DISCOVERY_IGNORED, ("origin", "reason"), ignored)
        yield counter(names.DISCOVERY_TROUBLES, ("origin",), [((p.origin,), p.troubles_total) for p in places])
        yield counter(names.DISCOVERY_MISSED, ("origin",), [((p.origin,), p.missed_total) for p in places])
        yield counter(names.DISCOVERY_REFUSED, (), [((), self._engines.membership.refused_total)])
