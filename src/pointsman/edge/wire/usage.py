"""Token usage as engines report it, in the shapes of the chat, completions, embeddings and responses APIs."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import msgspec

logger = logging.getLogger("pointsman.wire")

USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')
"""Can't match inside a JSON string: there the quotes are escaped. It may match a nested object."""


_MOST_TOKENS = 10**9
"""Of one request; engines may say anything, and sums have to fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one answer cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """Prompt tokens that came from the engine's KV cache; None where the engine does not tell."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _WireUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None

    def usage(self) -> Usage | None:
        prompt = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens
        if prompt is None:
            return None
        completion = self.completion_tokens if self.completion_tokens is not None else self.output_tokens
        details = self.prompt_tokens_details or self.input_tokens_details
        if not (_is_count(prompt) and _is_count(completion or 0)):
            logger.warning("usage in an answer is beyond reason: it counts as an answer without usage")
            return None
        cached = None if details is None else details.cached_tokens
        return Usage(prompt, completion or 0, cached if cached is not None and _is_count(cached) else None)


def _is_count(tokens: int) -> bool:
    return 0 <= tokens <= _MOST_TOKENS


class _Response(msgspec.Struct):
    usage: _WireUsage | None = None


class _Answer(msgspec.Struct):
    usage: _WireUsage | None = None
    choices: list[msgspec.Raw] | None = None
    response: _Response | None = None


_decoder = msgspec.json.Decoder(_Answer)


def usage_of_json(text: bytes) -> tuple[Usage | None, bool]:
    """Usage in one JSON answer or event, and whether it stands alone: beside an empty `choices` array."""
    try:
        answer = _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        logger.warning("usage in an answer can't be read, tokens of this answer are not accounted: %s", error)
        return None, False
    wire = answer.usage or (answer.response.usage if answer.response is not None else None)
    usage = wire.usage() if wire is not None else None
    return usage, answer.usage is not None and answer.choices is not None and not answer.choices


def usage_of_body(body: bytes) -> Usage | None:
    """Usage in a plain JSON answer, None if there is none."""
    if USAGE_OBJECT.search(body) is None:
        return None
    return usage_of_json(body)[0]
