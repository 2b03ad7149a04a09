"""SGLang: `/server_info` (its start arguments), `/v1/loads` or metrics named `sglang:…`, `/tokenize`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.worker import Role
from pointsman.edge.engines import prometheus_text as prometheus
from pointsman.edge.engines.adapter import Message
from pointsman.edge.engines.facts import CACHED_TOKENS_OFF, Capabilities, EngineFacts, KvEventSource
from pointsman.edge.engines.http import EngineHttp, if_there
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.model_list import offers, read_models, read_routes

_RANK_LABEL = "dp_rank"
_RUNNING = ("sglang:num_running_reqs", "sglang_num_running_reqs")
_WAITING = ("sglang:num_queue_reqs", "sglang_num_queue_reqs")
_KV_USE = ("sglang:token_usage", "sglang_token_usage")
_KV_CAPACITY = ("sglang:max_total_num_tokens", "sglang_max_total_num_tokens")
_NAMES = (*_RUNNING, *_WAITING, *_KV_USE, *_KV_CAPACITY)

_CACHED_TOKENS_HINT = f"{CACHED_TOKENS_OFF}: start it with --enable-cache-report"
_KV_EVENTS_HINT = (
    'KV events off: start it with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq"}\''
)
_LOAD_HINT = "its load is unknown: start it with --enable-metrics"
_MOST_RANKS = 4_096
"""Of one engine; each is a worker."""


_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}


class _InternalState(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _EventsDescription(msgspec.Struct):
    """Newer releases describe their publisher, as far as it is of TCP."""

    publisher: str = "null"
    block_size: int | None = None


class _ServerInfo(msgspec.Struct):
    """What is used of it. It may hold the engine's key too, so it is never printed."""

    served_model_name: str
    page_size: int
    version: str | None = None
    tokenizer_path: str | None = None
    dp_size: Annotated[int, msgspec.Meta(le=_MOST_RANKS)] = 1
    context_length: int | None = None
    max_total_num_tokens: int | None = None
    enable_cache_report: bool = False
    kv_events_config: str | None = None
    kv_events: _EventsDescription | None = None
    internal_states: list[_InternalState] | None = None
    model_path: str | None = None
    revision: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    tp_size: int | None = None
    disaggregation_mode: str = "null"
    disaggregation_transfer_backend: str | None = None
    disaggregation_bootstrap_port: int | None = None


class _EventsConfig(msgspec.Struct):
    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    bind: bool | None = None

    @property
    def connects(self) -> bool:
        """SGLang listens at wildcard and ipc endpoints, and connects to all others unless it is told otherwise."""
        listens = any(mark in self.endpoint for mark in ("*", "::", "0.0.0.0", "ipc://", "inproc://"))
        return not (listens if self.bind is None else self.bind)


class _RankLoad(msgspec.Struct):
    num_running_reqs: int
    num_waiting_reqs: int
    dp_rank: int = 0
    token_usage: float | None = None
    max_total_num_tokens: int | None = None
    total_prefill_uncached_tokens: int | None = None


class _Loads(msgspec.Struct):
    loads: list[_RankLoad]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class SglangAdapter:
    """Speaks to SGLang."""

    kind = "sglang"
    health_paths = ("/ready", "/health")
    """`/health` of SGLang computes a token and takes at least a second, so it is only for releases without `/ready`."""

    async def identify(self, http: EngineHttp) -> EngineFacts | None:
        """Facts if it tells its start arguments."""
        info = await if_there(http.get_json("/server_info", _ServerInfo))
        if info is None:
            info = await if_there(http.get_json("/get_server_info", _ServerInfo))
        if info is None:
            return None
        models = (await read_models(http)).with_base_names()
        routes = await read_routes(http)
        has_load = bool(await self.read_load(http))
        events = _kv_events(info)
        hints = [
            *([] if has_load else [_LOAD_HINT]),
            *([] if info.enable_cache_report else [_CACHED_TOKENS_HINT]),
            *([_KV_EVENTS_HINT] if events == () else []),
        ]
        states = info.internal_states or []
        return EngineFacts(
            kind=self.kind,
            version=info.version,
            models=models.names,
            lora=models.lora,
            tokenizer=info.tokenizer_path or models.root,
            ranks=tuple(range(max(1, info.dp_size))),
            max_context_tokens=info.context_length or models.max_context_tokens,
            block_size_tokens=info.kv_events.block_size or info.page_size if info.kv_events else info.page_size,
            kv_capacity_tokens=prometheus.capacity_or_none(info.max_total_num_tokens),
            max_batch=states[0].effective_max_running_requests_per_dp if states else None,
            kv=_kv_shape(info),
            role=_ROLES.get(info.disaggregation_mode),
            capabilities=Capabilities(
                chat=offers(routes, "/v1/chat/completions"),
                completions=offers(routes, "/v1/completions"),
                embeddings=offers(routes, "/v1/embeddings"),
                responses=offers(routes, "/v1/responses"),
                tokenize=offers(routes, "/tokenize", "/v1/tokenize"),
                token_id_prompts=offers(routes, "/v1/completions"),
                stream_usage=True,
                cached_tokens=info.enable_cache_report,
                load=has_load,
                kv_events=events,
                rank_header="X-Data-Parallel-Rank",
            ),
            hints=tuple(hints),
        )

    async def probe(self, http: EngineHttp, facts: EngineFacts) -> EngineFacts:
        """Its start arguments told all."""
        return facts

    async def read_load(self, http: EngineHttp) -> tuple[LoadReading, ...]:
        """From `/v1/loads`, which works without --enable-metrics; else from metrics. Empty where it has neither."""
        loads = await if_there(http.get_json("/v1/loads", _Loads))
        if loads is not None:
            return tuple(_reading(load) for load in sorted(loads.loads, key=lambda load: load.dp_rank))
        metrics = await if_there(http.get_text("/metrics"))
        return () if metrics is None else _from_metrics(metrics)

    async def tokenize(self, http: EngineHttp, model: str, prompt: str | Sequence[Message]) -> list[int] | None:
        """By `/tokenize`."""
        body = {"model": model, "prompt": prompt} if isinstance(prompt, str) else {"model": model, "messages": prompt}
        answer = await if_there(http.post_json("/tokenize", body, _Tokens))
        return None if answer is None else answer.tokens


def _kv_shape(info: _ServerInfo) -> KvShape | None:
    """Engines of either mode serve nothing but halves of requests."""
    if info.disaggregation_mode not in _ROLES:
        return None
    told = [kind for kind in (info.kv_cache_dtype, info.dtype) if kind and kind != "auto"]
    # Folders differ between machines; the last name is the model's own.
    model = (info.model_path or "").rstrip("/").rpartition("/")[2]
    backend = info.disaggregation_transfer_backend
    return KvShape(
        HandShake.SGLANG,
        block_size_tokens=info.page_size,
        dtype=told[0] if told else None,
        tensor_parallel=info.tp_size,
        model=f"{model}@{info.revision}" if model and info.revision else model or None,
        version=info.version,
        transports=(backend,) if backend else (),
        gives=info.disaggregation_mode == "prefill",
        takes=info.disaggregation_mode == "decode",
        port=info.disaggregation_bootstrap_port,
        ranks=max(1, info.dp_size),
        alone=False,
    )


def _reading(load: _RankLoad) -> LoadReading:
    return LoadReading(
        rank=load.dp_rank,
        running=prometheus.count(load.num_running_reqs, "num_running_reqs"),
        waiting=prometheus.count(load.num_waiting_reqs, "num_waiting_reqs"),
        kv_use=prometheus.share_or_none(load.token_usage),
        kv_capacity_tokens=prometheus.capacity_or_none(load.max_total_num_tokens),
        computed_tokens_total=load.total_prefill_uncached_tokens,
    )


def _from_metrics(text: str) -> tuple[LoadReading, ...]:
    samples = prometheus.select(text, _NAMES)
    running = samples.by_rank(*_RUNNING, rank_label=_RANK_LABEL)
    waiting = samples.by_rank(*_WAITING, rank_label=_RANK_LABEL)
    kv_use = samples.by_rank(*_KV_USE, rank_label=_RANK_LABEL)
    capacity = samples.by_rank(*_KV_CAPACITY, rank_label=_RANK_LABEL)
    return tuple(
        LoadReading(
            rank=rank,
            running=prometheus.count(running[rank], _RUNNING[0]),
            waiting=prometheus.count(waiting.get(rank), _WAITING[0]),
            kv_use=prometheus.share_or_none(kv_use.get(rank)),
            kv_capacity_tokens=prometheus.capacity_or_none(capacity.get(rank)),
        )
        for rank in sorted(running)
    )


def _kv_events(info: _ServerInfo) -> tuple[KvEventSource, ...] | None:
    """Where each rank publishes: a rank's port is the configured one plus the rank."""
    if not info.kv_events_config:
        return ()
    try:
        config = msgspec.json.decode(info.kv_events_config, type=_EventsConfig)
    except (msgspec.DecodeError, RecursionError):
        return None
    if config.publisher != "zmq":
        return ()
    return tuple(
        KvEventSource(
            rank,
            _port_plus(config.endpoint, rank),
            _port_plus(config.replay_endpoint, rank) if config.replay_endpoint else None,
            config.topic,
            config.connects,
        )
        for rank in range(max(1, info.dp_size))
    )


def _port_plus(endpoint: str, rank: int) -> str:
    match = re.fullmatch(r"(tcp://.*:)(\d+)", endpoint)
    return f"{match[1]}{int(match[2]) + rank}" if match else endpoint
