"""Metrics of draining, stopping and of what a front end had too much of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.serving.drains import Drains
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.serving.shutdown import Shutdown
from pointsman.edge.telemetry import names
from pointsman.edge.wire.http1_server import HttpServer


class OverloadCollector(Collector):
    """Registered with a prometheus_client registry; `late_s` says how late the last tick was."""

    def __init__(
        self,
        server: HttpServer,
        drains: Drains,
        shutdown: Shutdown,
        late_s: Callable[[], float],
        reloads: Counter[str],
    ) -> None:
        self._server = server
        self._drains = drains
        self._shutdown = shutdown
        self._late_s = late_s
        self._reloads = reloads

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        phases = Counter(drain.phase for drain in self._drains.all())
        yield gauge(names.DRAINS, ("phase",), (((phase,), count) for phase, count in phases.items()))
        yield counter(names.DRAIN_REQUESTS, ("how",), (((how,), n) for how, n in self._drains.requests.items()))
        yield counter(names.TURNED_AWAY, ("what",), (((what,), n) for what, n in self._server.turned_away.items()))
        yield gauge(names.BODIES_BYTES, (), [((), self._server.bodies_bytes)])
        yield gauge(names.LOOP_LATE, (), [((), self._late_s())])
        yield gauge(names.PHASE, ("phase",), [((self._shutdown.phase,), 1)])
        yield counter(names.RELOADS, ("outcome",), (((how,), n) for how, n in self._reloads.items()))
