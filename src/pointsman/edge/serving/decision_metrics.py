"""Metrics of decisions: how far predictions came true, and what is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.telemetry import names
from pointsman.edge.telemetry.traffic import Traffic


class DecisionCollector(Collector):
    """Registered with a prometheus_client registry; reads the state at every scrape."""

    def __init__(self, ring: DecisionRing, traffic: Traffic) -> None:
        self._ring = ring
        self._traffic = traffic

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        ring = self._ring
        yield gauge(names.DECISIONS, ("state",), [(("running",), ring.running), (("ended",), ring.kept)])
        yield gauge(names.DECISIONS_BYTES, (), [((), ring.bytes)])
        yield counter(names.DECISIONS_DROPPED, (), [((), ring.dropped)])
        ratios = HistogramMetricFamily(names.PREDICTION_RATIO.name, names.PREDICTION_RATIO.help, labels=["what"])
        for what, histogram in (("ttft", self._traffic.ttft_ratio), ("tpot", self._traffic.tpot_ratio)):
            ratios.add_metric([what], histogram.cumulative(), histogram.sum)
        yield ratios
