"""vLLM: `/version`, Prometheus metrics named `vllm:…`, `/kv_event_sources`, `/tokenize`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.migration import Mechanism
from pointsman.edge.engines import prometheus_text as prometheus
from pointsman.edge.engines.adapter import Message
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource
from pointsman.edge.engines.http import EngineHttp, if_there
from pointsman.edge.engines.kv_info import read_kv_info
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.model_list import offers, read_models, read_routes
from pointsman.edge.engines.usage_probe import probe_cached_tokens

_RANK_LABEL = "engine"
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USE = "vllm:kv_cache_usage_perc"
_KV_USE_OLD = "vllm:gpu_cache_usage_perc"
_CACHE_CONFIG = "vllm:cache_config_info"
# Not the prefix_cache_queries/hits counters: those count a waiting request again at every failed admission.
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_PREEMPTIONS = "vllm:num_preemptions_total"
_GENERATED = "vllm:generation_tokens_total"
_STARTED = "process_start_time_seconds"
_LORA = "vllm:lora_requests_info"
_NIXL = "vllm:nixl_"
"""Metrics of this name are there from the start where the connector is."""
_SIM_BUSY = "pointsman_sim_busy_ratio"
_EMBEDDED_BUSY = "pointsman_embedded_busy_ratio"
"""Both of engines of ours, which have no GPU that others could ask."""
_NAMES = (
    _RUNNING, _WAITING, _KV_USE, _KV_USE_OLD, _CACHE_CONFIG, _BY_SOURCE, _GENERATED, _PREEMPTIONS, _STARTED, _LORA,
    _SIM_BUSY, _EMBEDDED_BUSY,
)  # fmt: skip

_TELLS_TOKEN_IDS = (0, 10)
_MOST_DIGITS = 15
"""Of a number in a label; Python reads none of thousands."""

_CACHED_TOKENS_HINT = "start it with --enable-prompt-tokens-details"
_KV_EVENTS_HINT = (
    'KV events off: start it with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq"}\''
)
_LOAD_HINT = "its load is unknown: start it without --disable-log-stats"


class _Version(msgspec.Struct):
    version: str


class _EventSource(msgspec.Struct):
    """In a list each says its rank; in a map by rank each says whether it is switched on."""

    data_parallel_rank: int | None = None
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = ""


_EventSources = dict[str, _EventSource | None] | list[_EventSource | None]
# A union is no type to a type checker, but it can be decoded to like one.
_EVENT_SOURCES = cast("type[_EventSources]", _EventSources)


class _Tokens(msgspec.Struct):
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class _CacheConfig:
    block_size_tokens: int | None
    capacity_tokens: int | None
    dtype: str | None = None
    """Of the KV, where it is not the model's own."""


class VllmAdapter:
    """Speaks to vLLM, and to whatever keeps its contract."""

    kind = "vllm"
    health_paths = ("/health",)

    async def identify(self, http: EngineHttp) -> EngineFacts | None:
        """Facts if it has a version and either metrics of vLLM or models that vLLM owns."""
        version = await if_there(http.get_json("/version", _Version))
        if version is None:
            return None
        metrics = await if_there(http.get_text("/metrics")) or ""
        measured = prometheus.has_prefix(metrics, "vllm:")
        models = await read_models(http)
        if not measured and models.owner != "vllm":
            return None
        samples = prometheus.select(metrics, _NAMES)
        running = samples.by_rank(_RUNNING, rank_label=_RANK_LABEL)
        caches = _cache_configs(samples)
        cache = caches[min(caches)] if caches else _CacheConfig(None, None)
        events = await self._kv_events(http)
        kv = await read_kv_info(http)
        if kv is None and prometheus.has_prefix(metrics, _NIXL):
            kv = KvShape(HandShake.VLLM_NIXL, cache.block_size_tokens, cache.dtype, transports=("nixl",))
            kv = replace(kv, model=models.root, version=version.version)
        routes = await read_routes(http)
        hints = ([] if running else [_LOAD_HINT]) + ([_KV_EVENTS_HINT] if events == () else [])
        return EngineFacts(
            kind=self.kind,
            version=version.version,
            models=models.names,
            lora=models.lora,
            tokenizer=models.root,
            ranks=tuple(sorted(running)) or (0,),
            max_context_tokens=models.max_context_tokens,
            block_size_tokens=cache.block_size_tokens,
            kv_capacity_tokens=cache.capacity_tokens,
            kv=kv,
            capabilities=Capabilities(
                chat=offers(routes, "/v1/chat/completions"),
                completions=offers(routes, "/v1/completions"),
                embeddings=offers(routes, "/v1/embeddings"),
                responses=offers(routes, "/v1/responses"),
                tokenize=offers(routes, "/tokenize"),
                token_id_prompts=offers(routes, "/v1/completions"),
                stream_usage=True,
                migration=_migration(version.version, completions=offers(routes, "/v1/completions")),
                load=bool(running),
                kv_events=events,
                rank_header="X-data-parallel-rank",
            ),
            hints=tuple(hints),
        )

    async def probe(self, http: EngineHttp, facts: EngineFacts) -> EngineFacts:
        """Whether it reports cached tokens."""
        if facts.capabilities.completions is False:
            return facts
        return await probe_cached_tokens(http, facts, _CACHED_TOKENS_HINT)

    async def read_load(self, http: EngineHttp) -> tuple[LoadReading, ...]:
        """From `/metrics`, one reading an `engine` label. Empty where statistics are switched off."""
        samples = prometheus.select(await http.get_text("/metrics"), _NAMES)
        running = samples.by_rank(_RUNNING, rank_label=_RANK_LABEL)
        waiting = samples.by_rank(_WAITING, rank_label=_RANK_LABEL)
        kv_use = samples.by_rank(_KV_USE, _KV_USE_OLD, rank_label=_RANK_LABEL)
        computed = samples.by_rank(_BY_SOURCE, rank_label=_RANK_LABEL, where={"source": "local_compute"})
        local = samples.by_rank(_BY_SOURCE, rank_label=_RANK_LABEL, where={"source": "local_cache_hit"})
        remote = samples.by_rank(_BY_SOURCE, rank_label=_RANK_LABEL, where={"source": "external_kv_transfer"})
        generated = samples.by_rank(_GENERATED, rank_label=_RANK_LABEL)
        preemptions = samples.by_rank(_PREEMPTIONS, rank_label=_RANK_LABEL)
        caches = _cache_configs(samples)
        started = samples.by_rank(_STARTED, rank_label=_RANK_LABEL)
        busy = samples.by_rank(_SIM_BUSY, _EMBEDDED_BUSY, rank_label=_RANK_LABEL)
        # With several ranks it would not say whose they are.
        adapters, most_adapters = _adapters(samples) if len(running) == 1 else (None, None)
        return tuple(
            LoadReading(
                rank=rank,
                running=prometheus.count(running[rank], _RUNNING),
                waiting=prometheus.count(waiting.get(rank), _WAITING),
                kv_use=prometheus.share_or_none(kv_use.get(rank)),
                kv_capacity_tokens=caches[rank].capacity_tokens if rank in caches else None,
                computed_tokens_total=prometheus.count_or_none(computed.get(rank)),
                cached_tokens_total=prometheus.count_or_none(local[rank] + remote.get(rank, 0))
                if rank in local
                else None,
                generated_tokens_total=prometheus.count_or_none(generated.get(rank)),
                preemptions_total=prometheus.count_or_none(preemptions.get(rank)),
                started_s=started.get(0),
                gpu_use=prometheus.share_or_none(busy.get(rank)),
                running_adapters=adapters,
                most_adapters=most_adapters,
            )
            for rank in sorted(running)
        )

    async def tokenize(self, http: EngineHttp, model: str, prompt: str | Sequence[Message]) -> list[int] | None:
        """By `/tokenize`."""
        body = {"model": model, "prompt": prompt} if isinstance(prompt, str) else {"model": model, "messages": prompt}
        answer = await if_there(http.post_json("/tokenize", body, _Tokens))
        return None if answer is None else answer.tokens

    async def _kv_events(self, http: EngineHttp) -> tuple[KvEventSource, ...] | None:
        sources = await if_there(http.get_json("/kv_event_sources", _EVENT_SOURCES))
        if sources is None:
            return None
        by_rank = sources if isinstance(sources, dict) else _by_rank(sources)
        return tuple(
            KvEventSource(int(rank), source.endpoint, source.replay_endpoint, source.topic or "")
            for rank, source in by_rank.items()
            if source
            and source.enable_kv_cache_events
            and source.publisher == "zmq"
            and source.endpoint
            and rank.isdigit()
        )


def _migration(version: str, *, completions: bool | None) -> Mechanism:
    """Token ids of streams are told from 0.10 on, and completions take them as a prompt."""
    match = re.match(r"(\d+)\.(\d+)", version)
    is_new = match is not None and (int(match[1]), int(match[2])) >= _TELLS_TOKEN_IDS
    return Mechanism.TOKEN_IDS if is_new and completions is not False else Mechanism.REPLAY


def _by_rank(sources: list[_EventSource | None]) -> dict[str, _EventSource | None]:
    """A list's entries by the rank they say, or by their place."""
    return {
        str(place if source.data_parallel_rank is None else source.data_parallel_rank): source
        for place, source in enumerate(sources)
        if source is not None
    }


def _cache_configs(samples: prometheus.Samples) -> dict[int, _CacheConfig]:
    configs: dict[int, _CacheConfig] = {}
    for sample in samples.named(_CACHE_CONFIG):
        block_size = _positive(sample.labels.get("block_size"))
        blocks = _positive(sample.labels.get("num_gpu_blocks"))
        rank = _positive(sample.labels.get(_RANK_LABEL)) or 0
        dtype = sample.labels.get("cache_dtype")
        capacity = prometheus.capacity_or_none(block_size * blocks) if block_size and blocks else None
        configs[rank] = _CacheConfig(block_size, capacity, None if dtype == "auto" else dtype)
    return configs


def _adapters(samples: prometheus.Samples) -> tuple[frozenset[str] | None, int | None]:
    """Adapters that run, and how many fit. What was told before stays on the page: the latest time stamp counts."""
    told = samples.named(_LORA)
    if not told:
        return None, None
    latest = max(told, key=lambda sample: sample.value)
    names = latest.labels.get("running_lora_adapters", "").split(",")
    return frozenset(name.strip() for name in names if name.strip()), _positive(latest.labels.get("max_lora"))


def _positive(label: str | None) -> int | None:
    if not label or not label.isascii() or not label.isdigit() or len(label) > _MOST_DIGITS:
        return None
    return int(label) or None
