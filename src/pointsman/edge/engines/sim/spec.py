"""What one HTTP request asks the engine for, checked against what the engine can do."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

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


def chat_spec(
    body: ChatBody, settings: SimSettings, tokenizer: SimTokenizer, request_id: str | None, created: int
) -> GenerationSpec:
    """Specification of a chat request; raises `ApiError`."""
    model = check_model(settings, body.model)
    prompt = render_chat(tokenizer, body.messages, body.tools, open_answer=body.add_generation_prompt)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return _spec(body, settings, model, (prompt,), limit, field, _id("chatcmpl", request_id), created)


def completion_spec(
    body: CompletionBody, settings: SimSettings, tokenizer: SimTokenizer, request_id: str | None, created: int
) -> GenerationSpec:
    """Specification of a completion request; raises `ApiError`."""
    model = check_model(settings, body.model)
    prompts = _prompts(body.prompt, tokenizer)
    limit = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _spec(body, settings, model, prompts, limit, "max_tokens", _id("cmpl", request_id), created)


def _spec(
    body: GenerationBody,
    settings: SimSettings,
    model: str,
    prompts: tuple[list[int], ...],
    limit: int | None,
    limit_field: str,
    request_id: str,
    created: int,
) -> GenerationSpec:
    chat = isinstance(body, ChatBody)
    options = body.stream_options
    if options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    longest = max(map(len, prompts))
    _check_lengths(settings, longest, limit, limit_field)
    room = settings.max_model_len - longest
    return GenerationSpec(
        id=request_id,
        model=model,
        created=created,
        chat=chat,
        prompts=prompts,
        n=choices_of(body),
        max_tokens=min(settings.default_output_tokens, room) if limit is None else limit,
        ends_itself=limit is None and settings.default_output_tokens <= room,
        stops=stop_strings(body),
        include_stop=body.include_stop_str_in_output,
        echo=body.echo and not chat,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        lora_name=model if model != settings.model else None,
        cache_salt=body.cache_salt,
    )


def _check_lengths(settings: SimSettings, prompt: int, limit: int | None, limit_field: str) -> None:
    context = settings.max_model_len
    if prompt >= context:
        raise bad_request(
            f"This model's maximum context length is {context} tokens. However, your request has {prompt} input "
            "tokens. Please reduce the length of the input messages.",
            "input_tokens",
        )
    if limit is None:
        return
    if limit < 1:
        raise bad_request(f"{limit_field} must be at least 1, got {limit}.", limit_field)
    if prompt + limit > context:
        raise bad_request(
            f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context length is "
            f"{context} tokens and your request has {prompt} input tokens ({limit} > {context} - {prompt}).",
            limit_field,
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
