"""OpenAI requests, as far as routing needs them. Unknown fields and everything else are the engine's to judge."""

from __future__ import annotations

from functools import cached_property

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.edge.wire.body import wants_usage
from pointsman.edge.wire.errors import BadRequest, error_body
from pointsman.edge.wire.openai_errors import decode

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


class _Generation(msgspec.Struct, kw_only=True):
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
        return max(1, self.n or 1)


class CompletionRequest(_Generation, kw_only=True, dict=True):
    """Body of `/v1/completions`."""

    prompt: Raw
    """A string, or a non-empty array of strings, of token ids, or of arrays of token ids."""
    best_of: int | None = None
    prompt_embeds: Raw | UnsetType = UNSET

    @cached_property
    def prompt_count(self) -> int:
        """Prompts in `prompt`. Raises BadRequest if it is none of the allowed shapes."""
        return _count_prompts(bytes(self.prompt))

    @property
    def max_output_tokens(self) -> int | None:
        """Most tokens of one answer."""
        return self.max_tokens

    @property
    def sequences(self) -> int:
        """Answers that the engine decodes side by side."""
        return self.prompt_count * max(1, self.n or 1, self.best_of or 1)


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/embeddings`."""

    model: str
    input: Raw | UnsetType = UNSET
    user: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/responses`."""

    model: str
    input: Raw | UnsetType = UNSET
    stream: bool | None = None
    max_output_tokens: int | None = None
    user: str | None = None


class _Message(msgspec.Struct):
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
    if not decode(_messages, bytes(request.messages), "messages"):
        raise BadRequest(400, "messages: expected at least one message, got an empty array", "messages")
    _check_stream_options(request)
    return request


def parse_completion(body: bytes) -> CompletionRequest:
    """Check a completion request. Raises BadRequest."""
    request = decode(_completion, body)
    _check_stream_options(request)
    if request.prompt_count < 1:
        raise BadRequest(400, "prompt: expected at least one prompt, got an empty array", "prompt")
    return request


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """Check an embedding request. Raises BadRequest."""
    return decode(_embedding, body)


def parse_responses(body: bytes) -> ResponsesRequest:
    """Check a request to the responses API. Raises BadRequest."""
    return decode(_responses, body)


def _count_prompts(prompt: bytes) -> int:
    if prompt[:1] == b'"':
        return 1
    first = prompt[1:].lstrip(b" \t\r\n")[:1] if prompt[:1] == b"[" else b""
    if first == b"]":
        return 0
    if first == b'"':
        return len(decode(_texts, prompt, "prompt"))
    if first == b"[":
        return len(decode(_token_id_lists, prompt, "prompt"))
    if first and first in b"-0123456789":
        decode(_token_ids, prompt, "prompt")
        return 1
    raise BadRequest(
        400,
        "prompt: expected a string, or an array of strings, of token ids, or of arrays of token ids",
        "prompt",
    )


def _check_stream_options(request: ChatRequest | CompletionRequest) -> None:
    options = request.stream_options
    if isinstance(options, Raw) and bytes(options)[:1] not in (b"{", b"n"):
        raise BadRequest(400, "stream_options: expected an object or null", "stream_options")


def prompt_bytes(request: ChatRequest | CompletionRequest) -> bytes:
    """The prompt's bytes as they stand in the body, without the closing bracket or quote.

    A conversation that goes on has these bytes as a prefix, if its client writes it the same way again.
    """
    raw = request.messages if isinstance(request, ChatRequest) else request.prompt
    return bytes(raw)[:-1].rstrip(b" \t\r\n") if bytes(raw)[-1:] == b"]" else bytes(raw)[:-1]


def prefix_salt(request: ChatRequest | CompletionRequest) -> tuple[bytes, ...]:
    """Parts that keep equal prompts apart: what the engine renders before the messages, and the cache salt."""
    tools = bytes(request.tools) if isinstance(request, ChatRequest) and isinstance(request.tools, Raw) else b""
    return tools, (request.cache_salt or "").encode("utf-8", "surrogatepass")
