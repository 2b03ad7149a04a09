"""What of an engine's KV only a call can tell: whether it hands it over, where from, and as who."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.handover.vllm_mooncake import bootstrap_url
from pointsman.edge.engines.handover.vllm_nixl import COMPUTE_FOR_ANOTHER, PARAMS
from pointsman.edge.engines.http import EngineCallError, EngineHttp

_log = logging.getLogger("pointsman.engines")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DEFAULT_BLOCK_TOKENS = 16
_PUSHES = (
    "its KV connector writes KV to others instead of letting them read it, which is not supported: "
    "start it with NixlConnector"
)
_NO_PARAMS = "asked for KV for another engine it hands nothing over: start it with NixlConnector, or see its log"
_LOOPBACK_HINT = (
    "its KV can be read on its own host only: set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that other engines reach"
)

_PROBED = (_NO_PARAMS, _PUSHES, _LOOPBACK_HINT)


class _Told(msgspec.Struct):
    remote_host: str | None = None
    tp_size: int | None = None
    transfer_mode: str = "pull"


class _Completion(msgspec.Struct):
    kv_transfer_params: _Told | None = None


class _Entry(msgspec.Struct):
    engine_id: str


async def probe_kv(http: EngineHttp, facts: EngineFacts) -> EngineFacts:
    """Asks an engine with NixlConnector for one token for somebody else; its lease keeps a block or two for that.

    A probe that fails leaves what was known, with a line in the log.
    """
    kv = facts.kv
    asks = kv is not None and kv.handshake is HandShake.VLLM_NIXL and facts.capabilities.completions is not False
    if kv is None or not asks or not facts.models:
        return facts
    length = (facts.block_size_tokens or _DEFAULT_BLOCK_TOKENS) + 1
    if facts.max_context_tokens is not None:
        length = max(1, min(length, facts.max_context_tokens - 1))
    body = {
        "model": facts.models[0],
        "prompt": [1] * length,
        "max_tokens": 1,
        "temperature": 0,
        PARAMS: msgspec.Raw(COMPUTE_FOR_ANOTHER),
    }
    try:
        told = (await http.post_json("/v1/completions", body, _Completion)).kv_transfer_params
    except EngineCallError as error:
        _log.warning("%s: could not find out how it passes KV on: %s", http.url, error)
        return facts
    if told is None or told.transfer_mode != "pull":
        return replace(facts, kv=None, hints=(*facts.hints, _NO_PARAMS if told is None else _PUSHES))
    hints = facts.hints
    if told.remote_host in _LOOPBACK and urlsplit(http.url).hostname not in _LOOPBACK:
        hints += (_LOOPBACK_HINT,)
    return replace(facts, kv=replace(kv, tensor_parallel=told.tp_size), hints=hints)


def keep_probed_kv(facts: EngineFacts, before: EngineFacts) -> EngineFacts:
    """New facts of an engine that did not restart, with what only a call could tell taken from the earlier ones."""
    kv, known = facts.kv, before.kv
    if kv is None or kv.handshake is not HandShake.VLLM_NIXL:
        return facts
    hints = (*facts.hints, *(hint for hint in before.hints if hint in _PROBED))
    kept = None if known is None else replace(kv, tensor_parallel=known.tensor_parallel)
    return replace(facts, kv=kept, hints=hints)


def was_probed(before: EngineFacts) -> bool:
    """Whether a call told what it can; not so where nothing was known that could be asked for."""
    known = before.kv
    return (known is not None and known.handshake is HandShake.VLLM_NIXL) or any(
        hint in _PROBED for hint in before.hints
    )


async def with_engine_ids(http: EngineHttp, kv: KvShape, before: KvShape | None) -> KvShape:
    """Of an engine with MooncakeConnector that computes for others: what its ranks are called, by its bootstrap server.

    Those that only decode have none: then they are said to give nothing. Where it falls silent what was known holds.
    """
    if kv.handshake is not HandShake.VLLM_MOONCAKE:
        return kv
    url = bootstrap_url(http.url, kv.port)
    try:
        entries: Mapping[str, _Entry] = await http.beside(url).get_json("/query", dict[str, _Entry])
    except EngineCallError as error:
        if before is not None and before.handshake is kv.handshake:
            return replace(kv, engine_ids=before.engine_ids, gives=before.gives)
        _log.info("%s: it computes no prompts for others: its bootstrap server says nothing: %s", http.url, error)
        return replace(kv, gives=False)
    names = {int(rank): entry.engine_id for rank, entry in entries.items() if rank.isdigit()}
    if sorted(names) != list(range(len(names))) or not names:
        _log.warning("%s: its bootstrap server at %s names no ranks from 0 on", http.url, url)
        return replace(kv, gives=False)
    return replace(kv, engine_ids=tuple(names[rank] for rank in range(len(names))))
