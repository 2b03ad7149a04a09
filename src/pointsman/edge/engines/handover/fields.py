"""What of a request decides whether it can be split, and what a leg that only computes the prompt is asked for."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.edge.engines.handover.protocol import Asked
from pointsman.edge.wire.members import edited

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

HAND_SHAKE_FIELDS = (
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "cache_hit_threshold",
    "id_slot",
)
"""Of a body: the front end's to set. A client that sets them could read what belongs to others."""

_OFF = (b"null", b"false", b"0", b"1", b"[]", b'""')


class Fields(msgspec.Struct):
    """Members of a body, as they were written."""

    n: Raw | UnsetType = UNSET
    best_of: Raw | UnsetType = UNSET
    use_beam_search: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET
    prompt_embeds: Raw | UnsetType = UNSET
    echo: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET
    prompt_logprobs: Raw | UnsetType = UNSET
    max_tokens: Raw | UnsetType = UNSET
    max_completion_tokens: Raw | UnsetType = UNSET
    suffix: Raw | UnsetType = UNSET
    kv_transfer_params: Raw | UnsetType = UNSET
    bootstrap_host: Raw | UnsetType = UNSET
    bootstrap_port: Raw | UnsetType = UNSET
    bootstrap_room: Raw | UnsetType = UNSET
    disaggregated_params: Raw | UnsetType = UNSET
    cache_hit_threshold: Raw | UnsetType = UNSET
    id_slot: Raw | UnsetType = UNSET

    def says(self, name: str) -> bool:
        """Whether the member is there and is not switched off, null, 0, 1 or empty."""
        value = getattr(self, name)
        return isinstance(value, Raw) and bytes(value) not in _OFF

    def has(self, name: str) -> bool:
        """Whether the member is there and not null."""
        value = getattr(self, name)
        return isinstance(value, Raw) and bytes(value) != b"null"


_fields = msgspec.json.Decoder(Fields)
_list = msgspec.json.Decoder(list[Raw])


@lru_cache(maxsize=1)
def fields(body: bytes) -> Fields | None:
    """The members of a body, None where it can't be read. The last one is kept: it is asked for again at once."""
    try:
        return _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def prompts(read: Fields) -> int:
    """How many prompts a completion has; 1 for a chat."""
    return len(_parts(read)) if is_list_of_prompts(read) else 1


def is_list_of_prompts(read: Fields) -> bool:
    """Whether the prompt is a list of texts or of lists of token ids, not one text or one list of ids."""
    parts = _parts(read)
    return bool(parts) and bytes(memoryview(parts[0])[:1]) in (b'"', b"[")


def _parts(read: Fields) -> list[Raw]:
    prompt = read.prompt
    if not isinstance(prompt, Raw) or bytes(memoryview(prompt)[:1]) != b"[":
        return []
    try:
        return _list.decode(prompt)
    except (msgspec.MsgspecError, RecursionError):
        return []


def usual_refusal(asked: Asked, *, batches: bool = False) -> str | None:
    """What no kind of engine can pass on: several answers, logprobs of the prompt, prompts that are no text.

    `batches`: this kind takes several prompts in one request.
    """
    if asked.path not in (CHAT, COMPLETIONS):
        return f"{asked.path} has no prefill and decode that could be parted"
    read = fields(asked.body)
    if read is None:
        return "its body can't be edited: it is no JSON object, or nested too deeply"
    for name in HAND_SHAKE_FIELDS:
        if read.has(name):
            return f"it sets {name} itself"
    for name in ("n", "best_of"):
        if read.says(name):
            return f"{name} asks for more than one answer"
    if read.says("use_beam_search"):
        return "beam search has more than one sequence"
    if read.has("prompt_embeds"):
        return "its prompt are embeddings"
    if read.has("prompt_logprobs") or (read.says("echo") and read.has("logprobs")):
        return "logprobs of the prompt are known only where it was computed"
    if not batches and prompts(read) != 1:
        return "it has several prompts"
    return None


def prompt_only(asked: Asked, **extra: bytes) -> bytes:
    """The body of a leg that computes the prompt and one token, never streamed.

    `min_tokens` would keep it from ending after one, `stream_options` is refused without a stream.
    """
    read = fields(asked.body)
    put = {"stream": b"false", "max_tokens": b"1", **extra}
    if read is not None and read.has("max_completion_tokens"):
        put["max_completion_tokens"] = b"1"
    return edited(asked.body, put, ("stream_options", "min_tokens"))
