"""Which kind of engine answers at a URL."""

from __future__ import annotations

from types import MappingProxyType

from pointsman.core.model.errors import ConfigError, EngineError
from pointsman.edge.engines.adapter import EngineAdapter
from pointsman.edge.engines.facts import DISPLAY_NAMES, EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.llamacpp import LlamaCppAdapter
from pointsman.edge.engines.openai import OpenAiAdapter
from pointsman.edge.engines.sglang import SglangAdapter
from pointsman.edge.engines.trtllm import TrtllmAdapter
from pointsman.edge.engines.vllm import VllmAdapter

_IN_ORDER: tuple[EngineAdapter, ...] = (
    VllmAdapter(),
    SglangAdapter(),
    TrtllmAdapter(),
    LlamaCppAdapter(),
    OpenAiAdapter(),
)
"""The last one takes whatever lists models."""

ADAPTERS = MappingProxyType({adapter.kind: adapter for adapter in _IN_ORDER})


def adapter_of(kind: str) -> EngineAdapter:
    """The adapter of a kind. Raises ConfigError for a name that is none."""
    adapter = ADAPTERS.get(kind)
    if adapter is None:
        raise ConfigError(f"kind {kind!r} is unknown; use one of {', '.join(ADAPTERS)}")
    return adapter


async def detect(http: EngineHttp, kind: str | None = None) -> tuple[EngineAdapter, EngineFacts]:
    """Asks an engine what it is; with a `kind` only whether it is that.

    Raises EngineCallError where it does not answer, is not ready, wants a key or has no OpenAI API, and EngineError if
    it is not of the kind it should be.
    """
    candidates = _IN_ORDER if kind is None else (adapter_of(kind),)
    for adapter in candidates:
        facts = await adapter.identify(http)
        if facts is not None:
            return adapter, facts
    name = DISPLAY_NAMES.get(kind or "", kind)
    raise EngineError(f"{http.url} does not answer as {name} does; correct its `kind`, or leave `kind` out")
