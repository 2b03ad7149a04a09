"""KvShape: what of an engine decides whether it can pass the KV of a prompt on to another one, and how."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class HandShake(enum.StrEnum):
    """How two engines of one kind pass KV on."""

    VLLM_NIXL = "vllm-nixl"
    """The one that decodes reads it from the one that computed it; prefill first."""
    VLLM_MOONCAKE = "vllm-mooncake"
    """The one that computed it writes it to the one that decodes; both legs at once."""
    SHARED_STORAGE = "shared-storage"
    """Through storage that both see, without a word in the requests; prefill first."""
    SGLANG = "sglang"
    """They meet in a room of the prefill side's bootstrap server; both legs at once."""
    TRTLLM = "trtllm"
    """The answer of the context leg goes into the request of the generation leg."""
    LLAMACPP_SLOTS = "llamacpp-slots"
    """A slot is saved to a file in a directory that both see, and restored."""
    BLOCKS = "blocks"
    """The embedded engine's own, in the shape of vLLM's; parts of a prompt can be fetched, too."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """`None`: unknown, which forbids nothing."""

    handshake: HandShake
    block_size_tokens: int | None = None
    dtype: str | None = None
    """Of the KV cache, such as float16."""
    tensor_parallel: int | None = None
    model: str | None = None
    """Model and revision, or a fingerprint of the weights: KV of another one is garbage."""
    version: str | None = None
    """Of the engine."""
    bytes_per_token: int | None = None
    """Of KV, over all layers and GPUs."""
    transports: tuple[str, ...] = ()
    """Such as nixl, shm, tcp, best first; empty: unknown."""
    gives: bool = True
    """It can compute a prompt for another one."""
    takes: bool = True
    """It can go on with what another one computed."""
    parts: bool = False
    """It can fetch the beginning of a prompt from whoever holds it, and compute the rest (`Pull`)."""
    port: int | None = None
    """Where others meet it, where the hand-shake needs to be told (SGLang's bootstrap port)."""
    engine_ids: tuple[str, ...] = ()
    """What its ranks are called among engines, where a hand-shake needs it (Mooncake). New with each start."""
    slots: int | None = None
    """Numbered places of its sequences, where the hand-shake has to name one (llama.cpp)."""
    ranks: int = 1
    """Of its engine, where the hand-shake's number chooses one (SGLang)."""
    alone: bool = True
    """It serves whole requests, too. Without that only what can be split can be sent there (SGLang's `decode` mode)."""


def off(kv: KvShape) -> KvShape | None:
    """Of an engine that is to pass nothing on, nor take anything. One that serves halves only stays known as such."""
    return None if kv.alone else replace(kv, gives=False, takes=False, parts=False)


def mismatch(source: KvShape, target: KvShape) -> str | None:
    """Why KV of `source` can't be used by `target`; None: nothing speaks against it."""
    if source.handshake is not target.handshake:
        return f"hand-shakes differ: {source.handshake} and {target.handshake}"
    if not source.gives:
        return "the first one does not give KV away: it is set up to consume only"
    if not target.takes:
        return "the second one takes no KV: it is set up to produce only"
    for what, one, other in (
        ("models", source.model, target.model),
        ("block sizes", source.block_size_tokens, target.block_size_tokens),
        ("types of KV", source.dtype, target.dtype),
        ("engine versions", source.version, target.version),
        ("KV bytes a token", source.bytes_per_token, target.bytes_per_token),
    ):
        if one is not None and other is not None and one != other:
            return f"{what} differ: {one} and {other}"
    one_tp, other_tp = source.tensor_parallel, target.tensor_parallel
    if one_tp is not None and other_tp is not None and one_tp % other_tp and other_tp % one_tp:
        return f"tensor parallel sizes differ: {one_tp} and {other_tp}, of which neither divides the other"
    if source.transports and target.transports and not set(source.transports) & set(target.transports):
        return f"no common transport: {', '.join(source.transports)} and {', '.join(target.transports)}"
    return None
