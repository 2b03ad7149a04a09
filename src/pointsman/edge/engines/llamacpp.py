"""llama.cpp's server: `/props`, metrics named `llamacpp:…` or `/slots`, `/tokenize`, `/apply-template`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.engines import prometheus_text as prometheus
from pointsman.edge.engines.adapter import Message
from pointsman.edge.engines.facts import Capabilities, EngineFacts
from pointsman.edge.engines.http import EngineCallError, EngineHttp, Trouble, if_there
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.model_list import read_models
from pointsman.edge.engines.usage_probe import probe_cached_tokens

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_COMPUTED = "llamacpp:prompt_tokens_total"
_CACHED = "llamacpp:prompt_tokens_cached_total"
_GENERATED = "llamacpp:tokens_predicted_total"
_NAMES = (_RUNNING, _WAITING, _COMPUTED, _CACHED, _GENERATED)

_QUEUE_HINT = "its queue is unknown: start it with --metrics"
_LOAD_HINT = "its load is unknown: start it with --metrics"


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    total_slots: int
    default_generation_settings: _Generation
    build_info: str | None = None
    model_path: str | None = None


class _Slot(msgspec.Struct):
    is_processing: bool


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


class LlamaCppAdapter:
    """Speaks to llama-server. One slot computes one sequence."""

    kind = "llamacpp"
    health_paths = ("/health",)

    async def identify(self, http: EngineHttp) -> EngineFacts | None:
        """Facts if it has slots.

        Capacity is the slots' contexts together. Where slots share one cache (--kv-unified) that is too much, and the
        server does not tell: `kv_capacity_tokens` in the configuration overrides it.
        """
        props = await if_there(http.get_json("/props", _Props))
        if props is None:
            return None
        models = await read_models(http)
        metrics = await if_there(http.get_text("/metrics"))
        slots = None if metrics is not None else await if_there(http.get_json("/slots", list[_Slot]))
        hint = () if metrics is not None else (_QUEUE_HINT if slots is not None else _LOAD_HINT,)
        context = props.default_generation_settings.n_ctx
        kv = _kv_shape(props) if await _saves_slots(http) else None
        return EngineFacts(
            kind=self.kind,
            version=props.build_info,
            kv=kv,
            models=models.names,
            max_context_tokens=context or None,
            kv_capacity_tokens=prometheus.capacity_or_none(context * props.total_slots),
            max_batch=props.total_slots or None,
            capabilities=Capabilities(
                chat=True,
                completions=True,
                tokenize=True,
                token_id_prompts=True,
                stream_usage=True,
                load=metrics is not None or slots is not None,
                kv_events=(),
            ),
            hints=hint,
        )

    async def probe(self, http: EngineHttp, facts: EngineFacts) -> EngineFacts:
        """Whether it reports cached tokens."""
        return await probe_cached_tokens(http, facts, "use a newer llama.cpp")

    async def read_load(self, http: EngineHttp) -> tuple[LoadReading, ...]:
        """From metrics; without them the busy slots are counted and the queue is taken to be empty."""
        metrics = await if_there(http.get_text("/metrics"))
        if metrics is not None:
            return _from_metrics(metrics)
        slots = await if_there(http.get_json("/slots", list[_Slot]))
        if slots is None:
            return ()
        return (LoadReading(rank=0, running=sum(slot.is_processing for slot in slots), waiting=0),)

    async def tokenize(self, http: EngineHttp, model: str, prompt: str | Sequence[Message]) -> list[int] | None:
        """By `/tokenize`, messages through `/apply-template` first."""
        text = prompt
        if not isinstance(text, str):
            rendered = await if_there(http.post_json("/apply-template", {"messages": text}, _Prompt))
            if rendered is None:
                return None
            text = rendered.prompt
        body = {"content": text, "add_special": True, "parse_special": True}
        answer = await if_there(http.post_json("/tokenize", body, _Tokens))
        return None if answer is None else answer.tokens


_NO_FILE = "/slots/0?action=save"


async def _saves_slots(http: EngineHttp) -> bool:
    """Whether it was started with --slot-save-path: then it says that a name of a file is missing."""
    try:
        await http.post_json(_NO_FILE, {"filename": ""}, msgspec.Raw)
    except EngineCallError as error:
        if not error.reachable:
            raise
        return error.trouble is Trouble.BAD_STATUS
    return False


def _kv_shape(props: _Props) -> KvShape:
    # Hosts have one model in different directories.
    model = (props.model_path or "").replace("\\", "/").rpartition("/")[2]
    return KvShape(
        HandShake.LLAMACPP_SLOTS, model=model or None, version=props.build_info, slots=props.total_slots or None
    )


def _from_metrics(text: str) -> tuple[LoadReading, ...]:
    samples = prometheus.select(text, _NAMES)

    def value(name: str) -> float | None:
        return samples.by_rank(name, rank_label="rank").get(0)

    return (
        LoadReading(
            rank=0,
            running=prometheus.count(value(_RUNNING), _RUNNING),
            waiting=prometheus.count(value(_WAITING), _WAITING),
            computed_tokens_total=prometheus.count_or_none(value(_COMPUTED)),
            cached_tokens_total=prometheus.count_or_none(value(_CACHED)),
            generated_tokens_total=prometheus.count_or_none(value(_GENERATED)),
        ),
    )
