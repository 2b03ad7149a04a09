"""What one HTTP request asks the engine for, checked against what the engine can do."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.names import ServedNames
from pointsman.edge.engines.openai_server.requests import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    choices_of,
    stop_strings,
)
from pointsman.edge.engines.openai_server.sampling import Sampling
from pointsman.edge.engines.openai_server.sampling_fields import ModelDefaults, read_sampling
from pointsman.edge.engines.openai_server.text import ServedText

_COMPLETION_TOKENS = 16
_NO_DEFAULTS = ModelDefaults()


def _draw_seed() -> int:
    return random.getrandbits(63)


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """A checked request."""

    id: str
    model: str
    """As the client named it."""
    created: int
    """Seconds since the epoch."""
    chat: bool
    prompts: tuple[list[int], ...]
    n: int
    """Answers a prompt."""
    max_tokens: int
    ends_itself: bool
    """The client set no limit, so an answer of `max_tokens` tokens ends with `stop`."""
    stops: tuple[str, ...]
    include_stop: bool
    stop_ids: frozenset[int]
    """Those of the tokens that end an answer which the client named."""
    skip_special_tokens: bool
    sampling: Sampling
    echo: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    lora_name: str | None
    cache_salt: str | None
    kv_transfer_params: Mapping[str, object] | None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))


class SpecMaker:
    """Makes specifications for one engine. All methods raise `ApiError` for what it can't do."""

    def __init__(
        self,
        names: ServedNames,
        context_tokens: int,
        text: ServedText,
        *,
        usual_tokens: int | None = None,
        defaults: ModelDefaults = _NO_DEFAULTS,
        draw_seed: Callable[[], int] = _draw_seed,
    ) -> None:
        """`usual_tokens`: length of answers whose requests set no limit; None: until the context ends."""
        self._names = names
        self._context_tokens = context_tokens
        self._text = text
        self._usual_tokens = usual_tokens
        self._defaults = defaults
        self._draw_seed = draw_seed

    def chat(self, body: ChatBody, raw: bytes, request_id: str | None, created: int) -> GenerationSpec:
        """Specification of a chat request; `raw` is the body as it came."""
        model = self._names.check(body.model)
        self.refuse(body)
        prompt = self._text.chat(body, raw)
        if body.max_completion_tokens is not None:
            limit = _Limit(body.max_completion_tokens, "max_completion_tokens")
        else:
            limit = _Limit(body.max_tokens, "max_tokens")
        return self._spec(body, model, (prompt,), limit, _id("chatcmpl", request_id), created)

    def completion(self, body: CompletionBody, request_id: str | None, created: int) -> GenerationSpec:
        """Specification of a completion request."""
        model = self._names.check(body.model)
        self.refuse(body)
        prompts = self._prompts(body)
        limit = _Limit(_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens, "max_tokens")
        return self._spec(body, model, prompts, limit, _id("cmpl", request_id), created)

    def refuse(self, body: GenerationBody) -> None:
        """Raises `ApiError` for a field that asks for what this engine can't do. None is refused here."""

    def _spec(
        self,
        body: GenerationBody,
        model: str,
        prompts: tuple[list[int], ...],
        limit: _Limit,
        request_id: str,
        created: int,
    ) -> GenerationSpec:
        chat = isinstance(body, ChatBody)
        options = body.stream_options
        if options is not None and not body.stream:
            raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
        longest = max(map(len, prompts))
        _check_lengths(self._context_tokens, longest, limit)
        room, usual = self._context_tokens - longest, self._usual_tokens
        include_usage = bool(options and options.include_usage)
        free = room if usual is None else min(usual, room)
        most_tokens = free if limit.tokens is None else limit.tokens
        return GenerationSpec(
            id=request_id,
            model=model,
            created=created,
            chat=chat,
            prompts=prompts,
            n=choices_of(body),
            max_tokens=most_tokens,
            ends_itself=limit.tokens is None and usual is not None and usual <= room,
            stops=stop_strings(body),
            include_stop=body.include_stop_str_in_output,
            stop_ids=frozenset(body.stop_token_ids or ()),
            skip_special_tokens=body.skip_special_tokens,
            sampling=read_sampling(body, self._defaults, self._text.vocabulary, most_tokens, self._draw_seed),
            echo=body.echo and not chat,
            stream=bool(body.stream),
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
            return_token_ids=bool(body.return_token_ids),
            lora_name=model if model != self._names.model else None,
            cache_salt=body.cache_salt,
            kv_transfer_params=body.kv_transfer_params,
        )

    def _prompts(self, body: CompletionBody) -> tuple[list[int], ...]:
        given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        numbers = [item for item in given if isinstance(item, int)]
        if numbers and len(numbers) != len(given):
            raise bad_request("prompt must be a string, a list of strings, token ids or a list of them.", "prompt")
        if numbers:
            prompts = [numbers]
        else:
            special = body.add_special_tokens
            prompts = [
                self._text.encode(item, add_special_tokens=special) if isinstance(item, str) else item
                for item in given
                if not isinstance(item, int)
            ]
        for tokens in prompts or [[]]:
            if not tokens:
                raise bad_request("The decoder prompt cannot be empty", "prompt")
            if min(tokens) < 0 or max(tokens) >= self._text.vocabulary:
                wrong = min(tokens) if min(tokens) < 0 else max(tokens)
                raise bad_request(f"Token id {wrong} is out of vocabulary", "prompt")
        return tuple(prompts)


class _Limit(NamedTuple):
    """How many tokens the client allows, and which field says so."""

    tokens: int | None
    field: str


def _check_lengths(context: int, prompt: int, limit: _Limit) -> None:
    if prompt >= context:
        raise bad_request(
            f"This model's maximum context length is {context} tokens. However, your request has {prompt} input "
            "tokens. Please reduce the length of the input messages.",
            "input_tokens",
        )
    if limit.tokens is None:
        return
    if limit.tokens < 1:
        raise bad_request(f"{limit.field} must be at least 1, got {limit.tokens}.", limit.field)
    if prompt + limit.tokens > context:
        raise bad_request(
            f"'max_tokens' or 'max_completion_tokens' is too large: {limit.tokens}. This model's maximum context "
            f"length is {context} tokens and your request has {prompt} input tokens "
            f"({limit.tokens} > {context} - {prompt}).",
            limit.field,
        )


def _id(prefix: str, request_id: str | None) -> str:
    return f"{prefix}-{request_id or uuid.uuid4().hex}"
