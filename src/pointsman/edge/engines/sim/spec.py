"""What one HTTP request asks the engine for, checked against what the engine can do."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from pointsman.edge.engines.sim.chat_template import render_chat
from pointsman.edge.engines.sim.errors import ApiError, bad_request
from pointsman.edge.engines.sim.openai_requests import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    choices_of,
    stop_strings,
)
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.sim.tokenizer import VOCABULARY_SIZE, SimTokenizer

_COMPLETION_TOKENS = 16


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
    echo: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    lora_name: str | None
    cache_salt: str | None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))


def check_model(settings: SimSettings, name: str | None) -> str:
    """The model's name; an unknown one is a 404."""
    if name is None or name == "":
        return settings.model
    if name not in settings.models:
        raise ApiError(404, f"The model `{name}` does not exist.", "model")
    return name


class SpecMaker:
    """Makes specifications for one engine. All methods raise `ApiError` for what it can't do."""

    def __init__(self, settings: SimSettings, context_tokens: int, tokenizer: SimTokenizer) -> None:
        self._settings = settings
        self._context_tokens = context_tokens
        self._tokenizer = tokenizer

    def chat(self, body: ChatBody, request_id: str | None, created: int) -> GenerationSpec:
        """Specification of a chat request."""
        model = check_model(self._settings, body.model)
        prompt = render_chat(self._tokenizer, body.messages, body.tools, open_answer=body.add_generation_prompt)
        if body.max_completion_tokens is not None:
            limit = _Limit(body.max_completion_tokens, "max_completion_tokens")
        else:
            limit = _Limit(body.max_tokens, "max_tokens")
        return self._spec(body, model, (prompt,), limit, _id("chatcmpl", request_id), created)

    def completion(self, body: CompletionBody, request_id: str | None, created: int) -> GenerationSpec:
        """Specification of a completion request."""
        model = check_model(self._settings, body.model)
        prompts = _prompts(body.prompt, self._tokenizer)
        limit = _Limit(_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens, "max_tokens")
        return self._spec(body, model, prompts, limit, _id("cmpl", request_id), created)

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
        room, usual = self._context_tokens - longest, self._settings.default_output_tokens
        include_usage = bool(options and options.include_usage)
        return GenerationSpec(
            id=request_id,
            model=model,
            created=created,
            chat=chat,
            prompts=prompts,
            n=choices_of(body),
            max_tokens=min(usual, room) if limit.tokens is None else limit.tokens,
            ends_itself=limit.tokens is None and usual <= room,
            stops=stop_strings(body),
            include_stop=body.include_stop_str_in_output,
            echo=body.echo and not chat,
            stream=bool(body.stream),
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
            return_token_ids=bool(body.return_token_ids),
            lora_name=model if model != self._settings.model else None,
            cache_salt=body.cache_salt,
        )


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


def _prompts(prompt: str | list[str | int | list[int]], tokenizer: SimTokenizer) -> tuple[list[int], ...]:
    if isinstance(prompt, str):
        prompts = [tokenizer.encode(prompt)]
    else:
        numbers = [item for item in prompt if isinstance(item, int)]
        if numbers and len(numbers) != len(prompt):
            raise bad_request("prompt must be a string, a list of strings, token ids or a list of them.", "prompt")
        if numbers:
            prompts = [numbers]
        else:
            prompts = [
                tokenizer.encode(item) if isinstance(item, str) else item
                for item in prompt
                if not isinstance(item, int)
            ]
    for tokens in prompts or [[]]:
        if not tokens:
            raise bad_request("The decoder prompt cannot be empty", "prompt")
        if min(tokens) < 0 or max(tokens) >= VOCABULARY_SIZE:
            raise bad_request(f"Token id {max(tokens)} is out of vocabulary", "prompt")
    return tuple(prompts)


def _id(prefix: str, request_id: str | None) -> str:
    return f"{prefix}-{request_id or uuid.uuid4().hex}"
