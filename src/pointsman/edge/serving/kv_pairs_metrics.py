"""How many pairs of engines can't pass KV on although they should, and which, for a scrape and the status."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.cluster.kv_pairs import KvPairs
from pointsman.edge.serving.metric_families import gauge
from pointsman.edge.serving.status import RefusedPair
from pointsman.edge.telemetry import names


class KvPairsCollector(Collector):
    """Registered with a prometheus_client registry; reads the pairs at every scrape."""

    def __init__(self, pairs: KvPairs) -> None:
        self._pairs = pairs

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        yield gauge(names.KV_PAIRS_REFUSED, (), [((), len(self._pairs.refused))])


def refused_pairs(pairs: KvPairs) -> list[RefusedPair]:
    """For the status."""
    return [RefusedPair(prefill, decode, reason) for (prefill, decode), reason in pairs.refused.items()]
