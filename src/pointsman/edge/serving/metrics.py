"""Prometheus metrics of the front end, made from the ledger and the traffic's counters when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.core.ledger.snapshot import PROMPTS_ONLY, FleetSnapshot, WorkerSnapshot
from pointsman.core.model.token_keys import GPU
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.serving.time_metrics import time_model_families
from pointsman.edge.telemetry import names
from pointsman.edge.telemetry.decision_log import DecisionLog
from pointsman.edge.telemetry.histogram import Histogram
from pointsman.edge.telemetry.names import Metric
from pointsman.edge.telemetry.traffic import Traffic

_STATUSES = frozenset((*(status.value for status in HTTPStatus), 499, 529))
Value = Callable[[WorkerSnapshot], float | None]

_WORKER_GAUGES: tuple[tuple[Metric, Value], ...] = (
    (names.WORKER_RUNNING, lambda w: w.running),
    (names.WORKER_PREFILL, lambda w: w.prefill_tokens),
    (names.WORKER_KV, lambda w: w.kv_tokens),
    (names.WORKER_KV_CONFIDENCE, lambda w: w.kv.confidence),
    (names.WORKER_KV_BLOCKS, lambda w: w.kv.blocks.get(GPU, 0)),
    (names.WORKER_DRIFT, lambda w: w.drift),
    (names.WORKER_GPU_USE, lambda w: w.gpu_use),
    (names.WORKER_TRANSFERS_OUT, lambda w: w.transfers_out),
    (names.WORKER_TRANSFERS_IN, lambda w: w.transfers_in),
)
_QUEUE_GAUGES: tuple[tuple[Metric, Value], ...] = (
    (names.WORKER_FOREIGN, lambda w: w.foreign),
    (names.WORKER_QUEUED, lambda w: w.queued),
    (names.WORKER_KV_USE, lambda w: w.kv_use),
)
_WORKER_COUNTERS: tuple[tuple[Metric, Value], ...] = (
    (names.WORKER_DISPATCHED, lambda w: w.totals.dispatched),
    (names.WORKER_FAILED, lambda w: w.totals.failed + w.totals.attempts_failed),
    (names.WORKER_CANCELLED, lambda w: w.totals.cancelled),
    (names.WORKER_PREFILLS, lambda w: w.totals.prefills),
)
_CACHE_COUNTERS: tuple[tuple[Metric, Value], ...] = (
    (names.WORKER_PREDICTED, lambda w: w.totals.predicted_cached_tokens),
    (names.WORKER_REPORTED, lambda w: w.totals.reported_cached_tokens),
    (names.WORKER_PROMPT, lambda w: w.totals.reported_prompt_tokens),
)


class FrontendCollector(Collector):
    """Registered with a prometheus_client registry; reads the state at every scrape."""

    def __init__(
        self,
        snapshot: Callable[[], FleetSnapshot],
        traffic: Traffic,
        connections: Callable[[], dict[str, int]],
        policy: Callable[[], str],
        decision_log: DecisionLog | None = None,
        *,
        queue_depth: bool = True,
        cache_tokens: bool = True,
    ) -> None:
        self._snapshot = snapshot
        self._traffic = traffic
        self._connections = connections
        self._policy = policy
        self._decision_log = decision_log
        self._gauges = _WORKER_GAUGES + (_QUEUE_GAUGES if queue_depth else ())
        self._counters = _WORKER_COUNTERS + (_CACHE_COUNTERS if cache_tokens else ())

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        fleet = self._snapshot()
        yield from self._traffic_families()
        yield from self._fleet_families(fleet)
        yield _ready_family(fleet.workers)
        faults = ((w.id, fault, n) for w in fleet.workers for fault, n in w.faults.counts.items())
        yield counter(names.WORKER_FAULTS, ("worker", "fault"), (((w, f.value), n) for w, f, n in faults))
        if self._decision_log is not None:
            yield counter(names.LOG_ROWS, (), [((), self._decision_log.written)])
            yield counter(names.LOG_DROPPED, (), [((), self._decision_log.dropped)])
        yield from time_model_families(fleet.workers)
        for metric, value in self._gauges:
            yield _worker_family(GaugeMetricFamily(metric.name, metric.help, labels=["worker"]), fleet.workers, value)
        for metric, value in self._counters:
            yield _worker_family(CounterMetricFamily(metric.name, metric.help, labels=["worker"]), fleet.workers, value)

    def _traffic_families(self) -> Iterator[MetricFamily]:
        traffic = self._traffic
        yield counter(names.REQUESTS, ("route", "status"), _by_status(traffic.responses).items())
        yield counter(names.RETRIES, ("reason",), (((r,), n) for r, n in traffic.retries.items()))
        yield counter(names.RETRIES_REFUSED, ("reason",), (((r,), n) for r, n in traffic.retries_refused.items()))
        yield counter(names.MIGRATIONS, ("mechanism", "outcome"), traffic.migrations.items())
        yield counter(names.MIGRATIONS_REFUSED, ("reason",), (((r,), n) for r, n in traffic.migrations_refused.items()))
        yield counter(names.FALLBACKS, ("policy", "note"), traffic.notes.items())
        yield counter(names.GUARDS_LIFTED, (), [((), traffic.guards_lifted)])
        yield counter(names.STREAM_ERRORS, ("reason",), (((r,), n) for r, n in traffic.stream_errors.items()))
        yield counter(names.MISSING_USAGE, (), [((), traffic.missing_usage)])
        for metric, histogram in (
            (names.TTFT, traffic.ttft_s),
            (names.ITL, traffic.itl_s),
            (names.DURATION, traffic.duration_s),
            (names.DECISION, traffic.decision_s),
        ):
            yield _histogram(metric, histogram)

    def _fleet_families(self, fleet: FleetSnapshot) -> Iterator[MetricFamily]:
        totals = fleet.totals
        yield gauge(names.IN_FLIGHT, ("state",), [(("waiting",), fleet.waiting), (("running",), fleet.running)])
        yield counter(
            names.TOKENS,
            ("kind",),
            [
                (("prompt",), totals.prompt_tokens),
                (("cached",), totals.reported_cached_tokens),
                (("output",), totals.output_tokens),
            ],
        )
        indexed = [(("text",), fleet.text_blocks), (("exact",), fleet.exact_blocks)]
        yield gauge(names.INDEXED_BLOCKS, ("index",), indexed)
        yield gauge(names.CONNECTIONS, ("side",), (((side,), n) for side, n in self._connections().items()))
        yield gauge(names.POLICY, ("policy",), [((self._policy(),), 1)])


def _by_status(responses: Mapping[tuple[str, int], int]) -> dict[tuple[str, str], int]:
    """Engines choose statuses, too: those that nobody has a name for are told by their class."""
    found: dict[tuple[str, str], int] = {}
    for (route, status), number in responses.items():
        label = str(status) if status in _STATUSES else f"{status // 100}xx"
        found[route, label] = found.get((route, label), 0) + number
    return found


def _histogram(metric: Metric, histogram: Histogram) -> MetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help)
    family.add_metric([], histogram.cumulative(), histogram.sum)
    return family


def _ready_family(workers: Iterable[WorkerSnapshot]) -> MetricFamily:
    family = GaugeMetricFamily(names.WORKER_READY.name, names.WORKER_READY.help, labels=["worker", "state"])
    for worker in workers:
        ready = worker.usable or worker.state == PROMPTS_ONLY
        family.add_metric([worker.id, worker.state], 1.0 if ready else 0.0)
    return family


def _worker_family(
    family: GaugeMetricFamily | CounterMetricFamily, workers: Iterable[WorkerSnapshot], value: Value
) -> MetricFamily:
    for worker in workers:
        number = value(worker)
        if number is not None:
            family.add_metric([worker.id], number)
    return family
