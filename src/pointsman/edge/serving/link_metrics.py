"""Prometheus metrics of what is believed of links between machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.core.timing.link_learning import LinkRow
from pointsman.edge.serving.link_routes import SIZE_NAMES
from pointsman.edge.serving.metric_families import gauge
from pointsman.edge.telemetry import names

MOST_SHOWN = 256
"""Directions; machines come and go, and their pairs are many."""


class LinkCollector(Collector):
    """Of the directions of which most was seen; how many there are says how many are left out."""

    def __init__(self, rows: Callable[[], Sequence[LinkRow]]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        rows = self._rows()
        shown = sorted(rows, key=lambda row: (-row.estimate.seen, row.source, row.target))[:MOST_SHOWN]
        ends = [((row.source, row.target), row.estimate) for row in shown]
        yield gauge(names.LINKS_KNOWN, (), [((), len(rows))])
        yield gauge(names.LINK_FLOOR, ("source", "target"), [(pair, found.floor_ms) for pair, found in ends])
        yield gauge(
            names.LINK_SPEED,
            ("source", "target", "size"),
            [
                ((*pair, name), speed)
                for pair, found in ends
                for name, speed in zip(SIZE_NAMES, found.bytes_per_ms, strict=True)
            ],
        )
        yield gauge(names.LINK_SPREAD, ("source", "target"), [(pair, found.spread) for pair, found in ends])
        yield gauge(names.LINK_SEEN, ("source", "target"), [(pair, found.seen) for pair, found in ends])
