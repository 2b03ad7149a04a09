"""Whether an engine reports `cached_tokens`, found out by asking for one token twice."""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec

from pointsman.edge.engines.facts import CACHED_TOKENS_OFF, EngineFacts
from pointsman.edge.engines.http import EngineCallError, EngineHttp

_log = logging.getLogger("pointsman.engines")

_DEFAULT_BLOCK_TOKENS = 16
"""For engines that do not count in blocks: those report zeros too, and a short prompt costs them least."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    usage: _Usage | None = None


async def probe_cached_tokens(http: EngineHttp, facts: EngineFacts, how_to_switch_on: str | None) -> EngineFacts:
    """Facts with `capabilities.cached_tokens` filled in, and a hint where it is off.

    The second request repeats a prompt of one block and one token: some engines leave the field out while it is zero.
    A probe that fails leaves it unknown, with a line in the log.
    """
    if not facts.models or facts.capabilities.cached_tokens is not None:
        return facts
    try:
        reported = await _reports(http, facts)
    except EngineCallError as error:
        _log.info("%s: could not find out whether it reports cached tokens: %s", http.url, error)
        return facts
    hints = facts.hints
    if not reported:
        hints += (f"{CACHED_TOKENS_OFF}: {how_to_switch_on}" if how_to_switch_on else CACHED_TOKENS_OFF,)
    return replace(facts, capabilities=replace(facts.capabilities, cached_tokens=reported), hints=hints)


async def _reports(http: EngineHttp, facts: EngineFacts) -> bool:
    length = (facts.block_size_tokens or _DEFAULT_BLOCK_TOKENS) + 1
    if facts.max_context_tokens is not None:
        length = max(1, min(length, facts.max_context_tokens - 1))
    body = {"model": facts.models[0], "prompt": [1] * length, "max_tokens": 1, "temperature": 0}
    for _ in range(2):
        answer = await http.post_json("/v1/completions", body, _Completion)
        details = answer.usage.prompt_tokens_details if answer.usage else None
        if details is not None and details.cached_tokens is not None:
            return True
    return False
