"""OpenAI requests, as far as routing needs them. Unknown fields and everything else are the engine's to judge."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.edge.wire.body import wants_usage
from pointsman.edge.wire.errors import BadRequest, error_body
from pointsman.edge.wire.openai_errors import decode, decode_part

__all__ = [
    "BadRequest",
    "ChatRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "ResponsesRequest",
    "error_body",
    "parse_chat",
    "parse_completion",
    "parse_embedding",
    "parse_responses",
    "prefix_salt",
    "prompt_bytes",
]


_CLOSING_BRACKET = ord("]")
_SHAPE = re.compile(rb'"|\[[ \t\r\n]*+(?:[\]\["]|(?=[-0-9]))')
_NOT_EMPTY = re.compile(rb"\[[ \t\r\n]*+[^\] \t\r\n]")
_OF_TOKEN_IDS = b"0123456789-,[] \t\r\n"
_CHECKED_BYTES = 1024 * 1024
"""A larger prompt is not checked in every part, which the engine does anyway: to make objects of millions of messages
would keep everybody else waiting for seconds."""
_MOST_SEQUENCES = 2**20
"""More counts as so many: it is the engine's to refuse, and sums have to fit into 64 bits."""


class BetweenEngines(msgspec.Struct, kw_only=True):
    """Fields by which engines pass KV on. Only the front end sets them: who may name an engine to read from, or a place
    in its memory, could have what belongs to others, or make engines call anybody.
    """

    kv_transfer_params: Raw | UnsetType = UNSET
    bootstrap_host: Raw | UnsetType = UNSET
    bootstrap_port: Raw | UnsetType = UNSET
    bootstrap_room: Raw | UnsetType = UNSET
    disaggregated_params: Raw | UnsetType = UNSET

    def refuse(self) -> None:
        """Raises BadRequest for a field that is set; null is as good as absent."""
        if (
            self.kv_transfer_params is UNSET
            and self.bootstrap_room is UNSET
            and self.disaggregated_params is UNSET
            and self.bootstrap_host is UNSET
            and self.bootstrap_port is UNSET
        ):
            return
        for field in msgspec.structs.fields(BetweenEngines):
            value = getattr(self, field.name)
            if isinstance(value, Raw) and bytes(value) != b"null":
                message = f"{field.name}: is between engines, and set by the front end alone; remove it"
                raise BadRequest(400, message, field.name, "field_not_allowed")


class _Generation(BetweenEngines, kw_only=True):
    """Fields that chat and completions share."""

    model: str
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    stream_options: Raw | UnsetType = UNSET
    user: str | None = None
    cache_salt: str | None = None
    add_special_tokens: Raw | UnsetType = UNSET
    truncate_prompt_tokens: Raw | UnsetType = UNSET
    echo: Raw | UnsetType = UNSET
    return_token_ids: Raw | UnsetType = UNSET

    @property
    def include_usage(self) -> bool:
        """The client asked for a usage event itself."""
        return isinstance(self.stream_options, Raw) and wants_usage(self.stream_options)


class ChatRequest(_Generation, kw_only=True):
    """Body of `/v1/chat/completions`. What only the rendering of the prompt needs is kept as it stands."""

    messages: Raw
    """A non-empty array of objects with a `role`."""
    tools: Raw | UnsetType = UNSET
    max_completion_tokens: int | None = None
    metadata: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET
    reasoning_effort: Raw | UnsetType = UNSET
    add_generation_prompt: Raw | UnsetType = UNSET
    continue_final_message: Raw | UnsetType = UNSET
    chat_template: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET

    @property
    def max_output_tokens(self) -> int | None:
        """Most tokens of one answer."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def sequences(self) -> int:
        """Answers that the engine decodes side by side."""
        return min(_MOST_SEQUENCES, max(1, self.n or 1))


class CompletionRequest(_Generation, kw_only=True, dict=True):
    """Body of `/v1/completions`."""

    prompt: Raw
    """A string, or a non-empty array of strings, of token ids, or of arrays of token ids."""
    best_of: int | None = None
    prompt_embeds: Raw | UnsetType = UNSET

    @cached_property
    def prompt_count(self) -> int:
        """Prompts in `prompt`, set by `parse_completion`. Raises BadRequest for a request made otherwise."""
        raise BadRequest(400, "prompt: not checked yet; use parse_completion", "prompt")

    @property
    def max_output_tokens(self) -> int | None:
        """Most tokens of one answer."""
        return self.max_tokens

    @property
    def sequences(self) -> int:
        """Answers that the engine decodes side by side."""
        return min(_MOST_SEQUENCES, self.prompt_count * max(1, self.n or 1, self.best_of or 1))


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/embeddings`."""

    model: str
    input: Raw | UnsetType = UNSET
    user: str | None = None


class ResponsesRequest(BetweenEngines, kw_only=True):
    """Body of `/v1/responses`."""

    model: str
    input: Raw | UnsetType = UNSET
    stream: bool | None = None
    max_output_tokens: int | None = None
    user: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[Raw] | UnsetType | None = UNSET


_chat = msgspec.json.Decoder(ChatRequest)
_messages = msgspec.json.Decoder(list[_Message])
_completion = msgspec.json.Decoder(CompletionRequest)
_embedding = msgspec.json.Decoder(EmbeddingRequest)
_responses = msgspec.json.Decoder(ResponsesRequest)
_texts = msgspec.json.Decoder(list[str])
_token_ids = msgspec.json.Decoder(list[int])
_token_id_lists = msgspec.json.Decoder(list[list[int]])


def parse_chat(body: bytes) -> ChatRequest:
    """Check a chat request. Raises BadRequest."""
    request = decode(_chat, body)
    request.refuse()
    _check_messages(request.messages, body)
    _check_stream_options(request)
    return request


def parse_completion(body: bytes) -> CompletionRequest:
    """Check a completion request. Raises BadRequest."""
    request = decode(_completion, body)
    request.refuse()
    _check_stream_options(request)
    count = vars(request)["prompt_count"] = _count_prompts(request.prompt, body)
    if count < 1:
        raise BadRequest(400, "prompt: expected at least one prompt, got an empty array", "prompt")
    return request


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """Check an embedding request. Raises BadRequest."""
    return decode(_embedding, body)


def parse_responses(body: bytes) -> ResponsesRequest:
    """Check a request to the responses API. Raises BadRequest."""
    request = decode(_responses, body)
    request.refuse()
    return request


def _check_messages(messages: Raw, body: bytes) -> None:
    if len(memoryview(messages)) > _CHECKED_BYTES and _NOT_EMPTY.match(messages) is not None:
        return
    if not decode_part(_messages, messages, "messages", body):
        raise BadRequest(400, "messages: expected at least one message, got an empty array", "messages")


def _count_prompts(prompt: Raw, body: bytes) -> int:
    shape = _SHAPE.match(prompt)
    if shape is None:
        raise _wrong_prompt()
    form = shape.group()[:1] + shape.group()[1:].lstrip()
    if form == b'"':
        return 1
    if form == b"[]":
        return 0
    if form == b'["':
        return len(decode_part(_texts, prompt, "prompt", body))
    if len(memoryview(prompt)) > _CHECKED_BYTES:
        return _count_in_large_prompt(bytes(prompt), nested=form == b"[[")
    if form == b"[[":
        return len(decode_part(_token_id_lists, prompt, "prompt", body))
    decode_part(_token_ids, prompt, "prompt", body)
    return 1


def _count_in_large_prompt(token_ids: bytes, *, nested: bool) -> int:
    if token_ids.translate(None, _OF_TOKEN_IDS):
        raise _wrong_prompt()
    return token_ids.count(b"[") - 1 if nested else 1


def _wrong_prompt() -> BadRequest:
    return BadRequest(
        400, "prompt: expected a string, or an array of strings, of token ids, or of arrays of token ids", "prompt"
    )


def _check_stream_options(request: ChatRequest | CompletionRequest) -> None:
    options = request.stream_options
    if isinstance(options, Raw) and bytes(memoryview(options)[:1]) not in (b"{", b"n"):
        raise BadRequest(400, "stream_options: expected an object or null", "stream_options")


def prompt_bytes(request: ChatRequest | CompletionRequest) -> bytes:
    """The prompt's bytes as they stand in the body, without the closing bracket or quote.

    A conversation that goes on has these bytes as a prefix, if its client writes it the same way again.
    """
    view = memoryview(request.messages if isinstance(request, ChatRequest) else request.prompt)
    prompt = bytes(view[:-1])
    return prompt.rstrip(b" \t\r\n") if view[-1] == _CLOSING_BRACKET else prompt


def prefix_salt(request: ChatRequest | CompletionRequest) -> tuple[bytes, ...]:
    """Parts that keep equal prompts apart: what the engine renders before the messages, and the cache salt."""
    tools = bytes(request.tools) if isinstance(request, ChatRequest) and isinstance(request.tools, Raw) else b""
    return tools, (request.cache_salt or "").encode("utf-8", "surrogatepass")
