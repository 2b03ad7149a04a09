"""Sampling fields of a request, checked as vLLM checks them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.requests import ChatBody, CompletionBody, GenerationBody
from pointsman.edge.engines.openai_server.sampling import Sampling

MAX_LOGPROBS = 20
_MOST_BIAS = 100.0
_MOST_DIGITS = 20
_LEAST_TEMPERATURE = 0.01
"""What vLLM takes for anything between it and 0: below, logits are divided to infinity."""


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What a model's files say of its answers."""

    eos_ids: tuple[int, ...] = ()
    """Tokens with which an answer ends."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Values of fields that a request leaves out, by name: temperature, top_k, top_p, min_p, repetition_penalty."""


_FALLBACK = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def read_sampling(
    body: GenerationBody,
    defaults: ModelDefaults,
    vocabulary: int,
    most_tokens: int,
    draw_seed: Callable[[], int],
) -> Sampling:
    """What a body asks for; raises ApiError that names the field. A request without a seed gets one of `draw_seed`."""

    def value(name: str, low: float, high: float, *, above: bool = False) -> float:
        given = getattr(body, name)
        if given is None:
            return defaults.sampling.get(name, _FALLBACK.get(name, 0.0))
        if not low <= given <= high or (above and given == low):
            bounds = f"above {low:g}" if above else f"at least {low:g}"
            most = "" if high == math.inf else f" and at most {high:g}"
            raise bad_request(f"{name} must be {bounds}{most}, got {given:g}.", name)
        return float(given)

    temperature = value("temperature", 0.0, math.inf)
    if temperature:
        temperature = max(temperature, _LEAST_TEMPERATURE)
    min_tokens = body.min_tokens or 0
    if not 0 <= min_tokens <= most_tokens:
        raise bad_request(f"min_tokens must be between 0 and max_tokens={most_tokens}, got {min_tokens}.", "min_tokens")
    logprobs = _logprobs(body)
    return Sampling(
        temperature=temperature,
        top_k=max(0, int(value("top_k", -1, math.inf))),
        top_p=value("top_p", 0.0, 1.0, above=True),
        min_p=value("min_p", 0.0, 1.0),
        seed=body.seed if body.seed is not None else draw_seed() if temperature else 0,
        presence_penalty=value("presence_penalty", -2.0, 2.0),
        frequency_penalty=value("frequency_penalty", -2.0, 2.0),
        repetition_penalty=value("repetition_penalty", 0.0, math.inf, above=True),
        logit_bias=_bias(body.logit_bias, vocabulary),
        logprobs=logprobs,
        tells_prompt=body.echo and logprobs is not None,
        min_tokens=min_tokens,
        end_ids=_end_ids(body, defaults, vocabulary),
    )


def _end_ids(body: GenerationBody, defaults: ModelDefaults, vocabulary: int) -> tuple[int, ...]:
    """Tokens that end an answer: the model's own, unless they are ignored, and those of the request."""
    wanted = body.stop_token_ids or ()
    for token in wanted:
        if not 0 <= token < vocabulary:
            raise bad_request(f"Token id {token} is out of vocabulary", "stop_token_ids")
    return (*(() if body.ignore_eos else defaults.eos_ids), *wanted)


def _bias(given: Mapping[str, float] | None, vocabulary: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (given or {}).items():
        if not key.isascii() or not key.isdigit() or len(key) > _MOST_DIGITS or int(key) >= vocabulary:
            shown = key if len(key) <= _MOST_DIGITS else f"{key[:_MOST_DIGITS]}…"
            raise bad_request(f"logit_bias has {shown!r}, which is no token id of this model.", "logit_bias")
        bias[int(key)] = min(_MOST_BIAS, max(-_MOST_BIAS, value))
    return bias


def _logprobs(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise bad_request("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        if not body.logprobs:
            return None
        count, name = body.top_logprobs or 0, "top_logprobs"
    elif isinstance(body, CompletionBody) and body.logprobs is not None:
        count, name = body.logprobs, "logprobs"
    else:
        return None
    if not 0 <= count <= MAX_LOGPROBS:
        raise bad_request(f"{name} must be between 0 and {MAX_LOGPROBS}, got {count}.", name)
    return count
