"""What the operator says of how an engine passes KV on, where the engine itself does not tell, or tells too much."""

from __future__ import annotations

from dataclasses import replace

from pointsman.core.model.kv_shape import HandShake, KvShape, off
from pointsman.edge.engines.facts import DISPLAY_NAMES, EngineFacts

_BY_KIND: dict[str, dict[str, HandShake]] = {
    "vllm": {
        "nixl": HandShake.VLLM_NIXL,
        "mooncake": HandShake.VLLM_MOONCAKE,
        "shared-storage": HandShake.SHARED_STORAGE,
    },
    "trtllm": {"nixl": HandShake.TRTLLM, "mooncake": HandShake.TRTLLM},
    "openai": {"shared-storage": HandShake.SHARED_STORAGE},
}
"""Transports by which an engine of a kind may pass KV on although it can't be seen."""

_ONLY_IF_NAMED = (HandShake.LLAMACPP_SLOTS,)
"""Whether two servers see one directory is nothing that they know."""


_TELL_ALL = (HandShake.BLOCKS, HandShake.SGLANG)
"""Engines that have no other connector beside the one that they tell."""


def kv_shape(facts: EngineFacts, transport: str | None) -> tuple[KvShape | None, str | None]:
    """The shape that holds, and what is wrong with what was said; `transport`: `cache_transport` of the node.

    What can't be is not made so: then the engine passes nothing on.
    """
    told = facts.kv
    if told is not None and told.handshake in _ONLY_IF_NAMED:
        if transport != "shared-storage":
            told = None
        else:
            return replace(told, transports=(transport,)), None
    if transport is None:
        return told, None
    handshake = _BY_KIND.get(facts.kind, {}).get(transport)
    if told is not None and (
        handshake in (None, told.handshake) or told.handshake in _TELL_ALL or transport in told.transports
    ):
        if told.transports and transport not in told.transports:
            return off(told), f"cache_transport: {transport} is none of its own: {', '.join(told.transports)}"
        return replace(told, transports=(transport,)), None
    if handshake is None:
        name = DISPLAY_NAMES.get(facts.kind, facts.kind)
        return None, f"cache_transport: {transport}: {name} was not started so that it passes KV on by it"
    return KvShape(
        handshake,
        block_size_tokens=facts.block_size_tokens,
        model=told.model if told is not None else facts.tokenizer if facts.kind == "vllm" else None,
        version=facts.version,
        transports=(transport,),
    ), None
