"""Bodies: what the front end needs to know of a request's body, whatever API it is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw, UnsetType

from pointsman.edge.wire.openai import (
    ChatRequest,
    CompletionRequest,
    parse_chat,
    parse_completion,
    parse_embedding,
    parse_responses,
    prefix_salt,
    prompt_bytes,
)


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """One checked body."""

    model: str
    streams: bool
    adds_usage: bool
    """It streams, and its client did not ask for the usage event."""
    prompt: bytes
    """The prompt as it stands in the body, for prefix keys and its length; may be empty."""
    prefix_cached: bool = True
    """Engines keep the KV cache of such prompts."""
    salt: tuple[bytes, ...] = ()
    """What keeps equal prompts apart."""
    ends_with_done: bool = False
    """Its stream has to end with `data: [DONE]`."""
    sequences: int = 1
    max_output_tokens: int | None = None
    """Most tokens of one answer; None: the client set no limit, or none that engines take."""
    cache_salt: str | None = None
    """What the client wants its cached blocks to be kept apart by."""
    parsed: ChatRequest | CompletionRequest | None = None
    """The body itself, where its prompt can be tokenized."""


_MOST_TOKENS = 2**31 - 1
"""Limits above are none."""

ReadBody = Callable[[bytes], BodyFacts]
"""Checks a body; raises BadRequest that names the field."""


def read_chat(body: bytes) -> BodyFacts:
    """Body of `/v1/chat/completions`."""
    return _generation(parse_chat(body))


def read_completion(body: bytes) -> BodyFacts:
    """Body of `/v1/completions`."""
    return _generation(parse_completion(body))


def read_embedding(body: bytes) -> BodyFacts:
    """Body of `/v1/embeddings`."""
    request = parse_embedding(body)
    return BodyFacts(request.model, False, False, _open_ended(request.input), prefix_cached=False, max_output_tokens=0)


def read_responses(body: bytes) -> BodyFacts:
    """Body of `/v1/responses`: its streams always end with the usage, nobody has to ask for it."""
    request = parse_responses(body)
    return BodyFacts(
        request.model,
        bool(request.stream),
        False,
        _open_ended(request.input),
        max_output_tokens=_limit(request.max_output_tokens),
    )


def _generation(request: ChatRequest | CompletionRequest) -> BodyFacts:
    streams = bool(request.stream)
    return BodyFacts(
        model=request.model,
        streams=streams,
        adds_usage=streams and not request.include_usage,
        prompt=prompt_bytes(request),
        salt=prefix_salt(request),
        ends_with_done=streams,
        sequences=request.sequences,
        max_output_tokens=_limit(request.max_output_tokens),
        cache_salt=request.cache_salt,
        parsed=request,
    )


def _limit(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 1 <= tokens <= _MOST_TOKENS else None


def _open_ended(raw: Raw | UnsetType) -> bytes:
    """A JSON value without its closing quote or bracket: a longer one then begins with it."""
    return bytes(raw)[:-1] if isinstance(raw, Raw) else b""
