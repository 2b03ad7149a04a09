"""Metrics of KV that an engine gives and takes, under vLLM's names where it has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from pointsman.edge.telemetry.histogram import Histogram
from pointsman.edge.transfer.blocks import TransferReport
from pointsman.edge.transfer.errors import Failure

# The buckets of vLLM.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES = tuple(float(2 << shift) for shift in range(11, 33, 2))


class TransferMetrics:
    """Counts; `families` renders them."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self.seconds = Histogram(_SECONDS)
        self.bytes = Histogram(_BYTES)
        self._by_way: dict[tuple[str, str], int] = {}
        self._failures: dict[str, int] = {str(failure): 0 for failure in Failure}
        self.mismatched = 0
        """Requests whose `kv_transfer_params` were of another model or shape."""
        self.renewals_failed = 0
        self.resumed = 0
        self.repeated = 0

    def came(self, report: TransferReport) -> None:
        """A transfer ended well."""
        self.seconds.observe(report.ms / 1000)
        self.bytes.observe(report.bytes)
        way = (report.transport, report.codec)
        self._by_way[way] = self._by_way.get(way, 0) + report.wire_bytes
        self.resumed += report.resumed
        self.repeated += report.repeated

    def failed(self, failure: Failure) -> None:
        """A transfer did not."""
        self._failures[str(failure)] += 1

    def families(
        self, *, leases: int, held_blocks: int, expired: int, fetching: int, strangers: int
    ) -> Iterable[Metric]:
        """All of them, with what is the case now."""
        yield self._histogram("vllm:nixl_xfer_time_seconds", "Time of KV transfers into this engine.", self.seconds)
        yield self._histogram("vllm:nixl_bytes_transferred", "Bytes of KV a transfer.", self.bytes)
        failures = sum(self._failures.values()) + self.mismatched
        yield self._counter("vllm:nixl_num_failed_transfers", "KV transfers that did not end well.", failures)
        yield self._counter("vllm:nixl_num_kv_expired_reqs", "Leases of KV that ended unread.", expired)
        ways = CounterMetricFamily(
            "pointsman_kv_wire_bytes",
            "Bytes that KV took on its way here, by transport and codec.",
            labels=[*self._labels, "transport", "codec"],
        )
        for (transport, codec), count in self._by_way.items():
            ways.add_metric([*self._labels.values(), transport, codec], count)
        yield ways
        reasons = CounterMetricFamily(
            "pointsman_kv_fetch_failures",
            "Requests whose KV did not come, or not all of it, by reason.",
            labels=[*self._labels, "reason"],
        )
        for reason, count in {**self._failures, "mismatch": self.mismatched}.items():
            reasons.add_metric([*self._labels.values(), reason], count)
        yield reasons
        yield self._counter("pointsman_kv_resumed", "New connections for KV transfers that broke off.", self.resumed)
        yield self._counter("pointsman_kv_repeated_blocks", "Blocks that came with a wrong checksum.", self.repeated)
        yield self._counter(
            "pointsman_kv_renewals_failed", "Leases elsewhere that could not be extended.", self.renewals_failed
        )
        yield self._counter("pointsman_kv_strangers", "Connections for KV without a right token.", strangers)
        yield self._gauge("pointsman_kv_leases", "Requests whose KV is held for other engines.", leases)
        yield self._gauge("pointsman_kv_held_blocks", "Blocks that are held for them.", held_blocks)
        yield self._gauge("pointsman_kv_fetching", "Requests whose KV is to come from elsewhere.", fetching)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.sum)
        return family
