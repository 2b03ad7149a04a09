"""Bodies that engines of ours take: vLLM's OpenAI fields, as far as they mean something to one of them.

Other fields are accepted and change nothing, unless an engine refuses them (`SpecMaker.refuse`).
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from pointsman.edge.engines.openai_server.errors import bad_request

MAX_CHOICES = 128

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Longer numbers can neither be computed with nor be written into messages."""


class StreamOptions(msgspec.Struct):
    """How usage is reported in a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ContentPart(msgspec.Struct):
    """One part of a message's content; only text is understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, object]] | None = None
    tool_call_id: str | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """Fields that chat and completions share."""

    model: str | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    n: Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: Int64 | None = None
    response_format: dict[str, object] | None = None
    kv_transfer_params: dict[str, object] | None = None
    structured_outputs: object = None
    guided_json: object = None
    guided_regex: object = None
    guided_choice: object = None
    guided_grammar: object = None
    allowed_token_ids: object = None
    bad_words: object = None
    logits_processors: object = None
    use_beam_search: object = None
    truncate_prompt_tokens: object = None
    prompt_embeds: object = None


class ChatBody(GenerationBody, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: Int64 | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    add_generation_prompt: bool = True
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | Int64 | list[Int64]]
    add_special_tokens: bool = True
    logprobs: Int64 | None = None
    suffix: str | None = None
    best_of: Int64 | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Int64]


Body = TypeVar("Body", bound=msgspec.Struct)


def parse(body: bytes, kind: type[Body]) -> Body:
    """A typed body; the error names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        field = message.rpartition("$.")[2].partition("`")[0] if "$." in message else None
        raise bad_request(f"{message}", field) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def stop_strings(body: GenerationBody) -> tuple[str, ...]:
    """Strings that end an answer."""
    if body.stop is None:
        return ()
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if any(not stop for stop in stops):
        raise bad_request("stop cannot contain an empty string.", "stop")
    return stops


def choices_of(body: GenerationBody) -> int:
    """`n`, checked."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_CHOICES:
        raise bad_request(f"n must be between 1 and {MAX_CHOICES}, got {n}.", "n")
    return n
