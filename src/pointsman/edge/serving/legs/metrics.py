"""Prometheus metrics of KV that was moved between engines for requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.serving.metric_families import counter
from pointsman.edge.telemetry import names
from pointsman.edge.telemetry.traffic import Traffic


class TransferCollector(Collector):
    """Registered with a prometheus_client registry; reads the counters at every scrape."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        traffic = self._traffic
        yield counter(names.TRANSFERS, ("kind", "outcome"), traffic.transfers.items())
        fallbacks = (((reason,), number) for reason, number in traffic.transfer_fallbacks.items())
        yield counter(names.TRANSFER_FALLBACKS, ("reason",), fallbacks)
        left_alone = (((side,), number) for side, number in traffic.kv_left_alone.items())
        yield counter(names.KV_LEFT_ALONE, ("side",), left_alone)
        yield counter(names.TRANSFER_BYTES, (), [((), traffic.transfer_bytes)])
        yield counter(names.TRANSFER_SAVED, (), [((), traffic.transfer_saved_ms)])
        yield counter(names.TRANSFER_LOST, (), [((), traffic.transfer_lost_ms)])
        took = HistogramMetricFamily(names.TRANSFER_TIME.name, names.TRANSFER_TIME.help)
        took.add_metric([], traffic.transfer_s.cumulative(), traffic.transfer_s.sum)
        yield took
