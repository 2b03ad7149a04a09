"""Families of samples in Prometheus' form."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

from pointsman.edge.telemetry.names import Metric

Samples = Iterable[tuple[tuple[str, ...], float]]


def counter(metric: Metric, labels: tuple[str, ...], samples: Samples) -> MetricFamily:
    """Counts that only grow, by label values."""
    family = CounterMetricFamily(metric.name, metric.help, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def gauge(metric: Metric, labels: tuple[str, ...], samples: Samples) -> MetricFamily:
    """Values as they stand now, by label values."""
    family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
