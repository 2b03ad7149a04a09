"""TensorRT-LLM (`trtllm-serve`): `/version`, Prometheus metrics named `trtllm_…` at `/prometheus/metrics`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.engines import prometheus_text as prometheus
from pointsman.edge.engines.adapter import Message
from pointsman.edge.engines.facts import Capabilities, EngineFacts
from pointsman.edge.engines.http import EngineHttp, if_there
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.model_list import offers, read_models, read_routes
from pointsman.edge.engines.usage_probe import probe_cached_tokens

_METRICS_PATH = "/prometheus/metrics"
_RANK_LABEL = "rank"
_RUNNING = "trtllm_num_requests_running"
_WAITING = "trtllm_num_requests_waiting"
_KV_USE = "trtllm_kv_cache_utilization"
_KV_BLOCKS = "trtllm_kv_cache_max_blocks"
_BLOCK_TOKENS = "trtllm_kv_cache_tokens_per_block"
_MAX_BATCH = ("trtllm_max_batch_size_runtime", "trtllm_max_batch_size_static")
_NAMES = (_RUNNING, _WAITING, _KV_USE, _KV_BLOCKS, _BLOCK_TOKENS, *_MAX_BATCH)

_LOAD_HINT = "its load is unknown: start it with `return_perf_metrics: true` and `enable_iter_perf_stats: true`"


class _Version(msgspec.Struct):
    version: str


class _ServerInfo(msgspec.Struct):
    disaggregated_params: dict[str, msgspec.Raw] | None = None
    """Of an engine that can pass KV on; empty where it was started without."""


class TrtllmAdapter:
    """Speaks to trtllm-serve. Its body schema is strict, so nothing of other engines is ever sent to it."""

    kind = "trtllm"
    health_paths = ("/health",)

    async def identify(self, http: EngineHttp) -> EngineFacts | None:
        """Facts if it has a version and either metrics of TensorRT-LLM or models that it owns."""
        version = await if_there(http.get_json("/version", _Version))
        if version is None:
            return None
        metrics = await if_there(http.get_text(_METRICS_PATH)) or ""
        models = await read_models(http)
        if not prometheus.has_prefix(metrics, "trtllm_") and models.owner != "tensorrt_llm":
            return None
        samples = prometheus.select(metrics, _NAMES)
        has_load = bool(samples.named(_RUNNING))
        routes = await read_routes(http)
        info = await if_there(http.get_json("/server_info", _ServerInfo))
        block_size = _whole(samples, _BLOCK_TOKENS)
        passes_on = info is not None and bool(info.disaggregated_params)
        return EngineFacts(
            kind=self.kind,
            version=version.version,
            kv=KvShape(HandShake.TRTLLM, block_size, version=version.version) if passes_on else None,
            models=models.names,
            lora=models.lora,
            max_context_tokens=models.max_context_tokens,
            block_size_tokens=block_size,
            kv_capacity_tokens=_capacity(samples),
            max_batch=_whole(samples, *_MAX_BATCH),
            capabilities=Capabilities(
                chat=offers(routes, "/v1/chat/completions"),
                completions=offers(routes, "/v1/completions"),
                embeddings=offers(routes, "/v1/embeddings"),
                responses=offers(routes, "/v1/responses"),
                tokenize=False,
                token_id_prompts=offers(routes, "/v1/completions"),
                stream_usage=True,
                load=has_load,
            ),
            hints=() if has_load else (_LOAD_HINT,),
        )

    async def probe(self, http: EngineHttp, facts: EngineFacts) -> EngineFacts:
        """Whether it reports cached tokens."""
        return await probe_cached_tokens(http, facts, None)

    async def read_load(self, http: EngineHttp) -> tuple[LoadReading, ...]:
        """One reading: its ranks share one queue. Empty where metrics are switched off."""
        metrics = await if_there(http.get_text(_METRICS_PATH))
        if metrics is None:
            return ()
        samples = prometheus.select(metrics, _NAMES)
        if not samples.named(_RUNNING):
            return ()
        return (
            LoadReading(
                rank=0,
                running=prometheus.count(_largest(samples, _RUNNING), _RUNNING),
                waiting=prometheus.count(_largest(samples, _WAITING), _WAITING),
                kv_use=prometheus.share_or_none(_largest(samples, _KV_USE)),
                kv_capacity_tokens=_capacity(samples),
            ),
        )

    async def tokenize(self, http: EngineHttp, model: str, prompt: str | Sequence[Message]) -> list[int] | None:
        """It has no public route for that."""
        return None


def _largest(samples: prometheus.Samples, *names: str) -> float | None:
    return max(samples.by_rank(*names, rank_label=_RANK_LABEL).values(), default=None)


def _whole(samples: prometheus.Samples, *names: str) -> int | None:
    return prometheus.count_or_none(_largest(samples, *names)) or None


def _capacity(samples: prometheus.Samples) -> int | None:
    blocks, block_tokens = _whole(samples, _KV_BLOCKS), _whole(samples, _BLOCK_TOKENS)
    return prometheus.capacity_or_none(blocks * block_tokens) if blocks and block_tokens else None
