"""The request for the rest of an answer: a completion whose prompt is the client's prompt and the tokens so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CONTINUE_PATH = "/v1/completions"
_COMPLETION_TOKENS = 16
"""What engines generate for a completion that sets no limit."""

_AS_THEY_ARE = frozenset((
    "model", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "length_penalty",
    "logit_bias", "user", "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
    "allowed_token_ids", "priority", "cache_salt", "watermarking", "stream", "stream_interval", "session_id", "seed",
    "data_parallel_rank", "return_tokens_as_token_ids", "logprob_token_ids", "metadata", "service_tier", "store",
))  # fmt: skip
"""Fields that say of the rest what they say of the whole."""
_MADE_ANEW = frozenset((
    "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "stop", "include_stop_str_in_output",
    "stream_options", "return_token_ids", "logprobs", "top_logprobs", "n", "best_of", "echo",
))  # fmt: skip
_OF_THE_PROMPT = frozenset((
    "tools", "tool_choice", "parallel_tool_calls", "documents", "reasoning_effort", "add_generation_prompt",
    "continue_final_message", "chat_template", "chat_template_kwargs", "add_special_tokens", "truncate_prompt_tokens",
    "truncation_side", "media_io_kwargs", "mm_processor_kwargs", "return_prompt_text", "include_reasoning",
    "functions", "function_call", "modalities", "response_format",
))  # fmt: skip
"""Fields that are in the prompt's tokens already, or are looked at before it comes to this."""
_HARMLESS = frozenset((
    "presence_penalty", "frequency_penalty", "bad_words", "no_repeat_ngram_size", "dry_multiplier", "mirostat",
    "use_beam_search", "thinking_token_budget", "vllm_xargs", "logits_processors",
))  # fmt: skip
"""Fields that have the value of one that is not given, else it would not come to this."""
_KNOWN = _AS_THEY_ARE | _MADE_ANEW | _OF_THE_PROMPT | _HARMLESS


def unknown_field(body: Mapping[str, Any]) -> str | None:
    """One of which nobody knows whether it says of the rest what it says of the whole."""
    return next((key for key, value in body.items() if key not in _KNOWN and value is not None), None)


def stops_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Its stop strings."""
    stop = body.get("stop")
    found = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    return tuple(each for each in found if isinstance(each, str) and each)


def limit_of(body: Mapping[str, Any], prompt_tokens: int, max_context_tokens: int | None) -> int | None:
    """Most tokens of its answer; None: nobody knows."""
    if "messages" not in body:
        limit = body.get("max_tokens", _COMPLETION_TOKENS)
    else:
        limit = body.get("max_completion_tokens")
        limit = body.get("max_tokens") if limit is None else limit
    if isinstance(limit, int):
        return limit
    return None if max_context_tokens is None else max_context_tokens - prompt_tokens


def continued_body(body: Mapping[str, Any], prompt: Sequence[int], kept: Sequence[int], limit: int) -> dict[str, Any]:
    """The body of the request for the rest. Stop strings are looked for here: one may have begun before the seam."""
    rest: dict[str, Any] = {key: value for key, value in body.items() if key in _AS_THEY_ARE}
    options = body.get("stream_options")
    rest["prompt"] = [*prompt, *kept]
    rest["max_tokens"] = limit - len(kept)
    rest["stream"] = True
    rest["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    rest["return_token_ids"] = True
    if body.get("min_tokens"):
        rest["min_tokens"] = max(0, body["min_tokens"] - len(kept))
    if "messages" not in body and body.get("logprobs") is not None:
        rest["logprobs"] = body["logprobs"]
    return rest
