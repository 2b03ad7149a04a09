"""`/metrics` of an engine of ours, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pointsman.core.engine_model.engine import EngineModel
from pointsman.edge.engines.openai_server.names import ServedNames
from pointsman.edge.telemetry.histogram import Histogram

# The buckets of vLLM.
TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
ITL_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
REQUEST_BUCKETS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)


class ServerMetrics:
    """What the engine model does not count itself. Times are real seconds, as a client sees them."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        """Seconds since the epoch at which this engine started."""
        self.ttft_s = Histogram(TTFT_BUCKETS_S)
        self.itl_s = Histogram(ITL_BUCKETS_S)
        self.queue_s = Histogram(REQUEST_BUCKETS_S)
        self.e2e_s = Histogram(REQUEST_BUCKETS_S)
        self.ended = {"stop": 0, "length": 0, "abort": 0}
        """Sequences by how they ended."""
        self.served = 0
        """HTTP requests that are being served now."""


def render_metrics(
    names: ServedNames, dp_rank: int, engine: EngineModel, metrics: ServerMetrics, more: Iterable[Metric] = ()
) -> bytes:
    """Prometheus text; `more`: what only this kind of engine has."""
    registry = CollectorRegistry()
    registry.register(_Collector(names, dp_rank, engine, metrics, more))
    return generate_latest(registry)


def busy_gauge(name: str, names: ServedNames, dp_rank: int, busy: float) -> Metric:
    """Share of the time in which an engine computed, lately: what others tell of their GPU."""
    family = GaugeMetricFamily(
        name, "Share of the last second or so in which it computed.", labels=["engine", "model_name"]
    )
    family.add_metric([str(dp_rank), names.model], busy)
    return family


class _Collector(Collector):
    def __init__(
        self, names: ServedNames, dp_rank: int, engine: EngineModel, metrics: ServerMetrics, more: Iterable[Metric]
    ) -> None:
        self._names = names
        self._engine = engine
        self._metrics = metrics
        self._more = more
        self._labels = {"engine": str(dp_rank), "model_name": names.model}

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._infos()
        metrics = self._metrics
        started = GaugeMetricFamily("process_start_time_seconds", "Start time of the process.")
        started.add_metric([], metrics.started_s)
        yield started
        yield self._histogram("vllm:time_to_first_token_seconds", "Time to first token.", metrics.ttft_s)
        yield self._histogram("vllm:inter_token_latency_seconds", "Time between tokens.", metrics.itl_s)
        yield self._histogram("vllm:request_queue_time_seconds", "Time in the queue.", metrics.queue_s)
        yield self._histogram("vllm:e2e_request_latency_seconds", "Time from arrival to end.", metrics.e2e_s)
        yield from self._more

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        yield self._gauge("vllm:num_requests_running", "Requests in the running batch.", engine.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting.", engine.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", engine.kv_use)

    def _counters(self) -> Iterator[Metric]:
        counters = self._engine.counters
        computed, cached = counters.prompt_tokens_computed, counters.prompt_tokens_cached
        transferred = counters.prompt_tokens_transferred
        yield self._counter("vllm:prompt_tokens", "Prompt tokens.", computed + cached + transferred)
        yield self._counter("vllm:prompt_tokens_cached", "Prompt tokens taken from a cache.", cached)
        sources = {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": transferred}
        yield self._by_label("vllm:prompt_tokens_by_source", "Prompt tokens by origin.", "source", sources)
        yield self._counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", computed + cached)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", cached)
        yield self._counter("vllm:generation_tokens", "Generated tokens.", counters.generated_tokens)
        yield self._counter("vllm:num_preemptions", "Preemptions.", self._engine.preemptions)
        yield self._by_label("vllm:request_success", "Ended requests.", "finished_reason", self._metrics.ended)

    def _infos(self) -> Iterator[Metric]:
        config = self._engine.config
        cache = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(config.num_blocks),
            "enable_prefix_caching": str(config.prefix_caching),
            "cache_dtype": "auto",
            "engine": self._labels["engine"],
        }
        yield _info("vllm:cache_config_info", "Configuration of the KV cache.", cache)
        if self._names.adapters:
            names = {
                "max_lora": str(len(self._names.adapters)),
                "running_lora_adapters": self._adapters(0, self._engine.running),
                "waiting_lora_adapters": self._adapters(self._engine.running, None),
            }
            yield _info("vllm:lora_requests_info", "Adapters in use.", names)

    def _adapters(self, first: int, last: int | None) -> str:
        sequences = self._engine.requests()[first:last]
        return ",".join(sorted({s.lora_name for s in sequences if s.lora_name}))

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by_label(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.sum)
        return family


def _info(name: str, text: str, labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family
