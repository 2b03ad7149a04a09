"""What a request allows when its stream breaks off: which mechanisms give what an undisturbed run would have given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_GUIDED = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
    "json_schema", "regex", "ebnf", "grammar", "structural_tag",
)  # fmt: skip
_OF_THE_ANSWER_SO_FAR = {
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "bad_words": ((), []),
    "no_repeat_ngram_size": (0,),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),
    "vllm_xargs": ({},),
    "custom_logit_processor": (),
    "logits_processors": ((), []),
    "dry_multiplier": (0, 0.0),
    "mirostat": (0,),
}
"""Fields that engines apply to what they generated themselves; what was generated elsewhere is a prompt to them."""
_NOT_OF_THE_STREAM = ("prompt_embeds", "prompt_logprobs", "kv_transfer_params", "ec_transfer_params", "suffix")


@dataclass(frozen=True, slots=True)
class Abilities:
    """Why a mechanism can't be exact for a request; None: it can."""

    token_ids: str | None
    replay: str | None


def abilities(body: Mapping[str, Any]) -> Abilities:
    """Of one streamed request, by its fields."""
    never = _never(body)
    if never is not None:
        return Abilities(never, never)
    return Abilities(_against_token_ids(body), _against_replay(body))


def is_greedy(body: Mapping[str, Any]) -> bool:
    """Each token is the likeliest one."""
    temperature = body.get("temperature")
    return (_is_number(temperature) and temperature == 0) or body.get("top_k") == 1


def _never(body: Mapping[str, Any]) -> str | None:
    for field in ("n", "best_of"):
        value = body.get(field)
        if isinstance(value, int) and value > 1:
            return f"{field} is {value}"
    if body.get("use_beam_search"):
        return "it searches with beams"
    return "it has several prompts" if _several(body.get("prompt")) else None


def _several(prompt: object) -> bool:
    if not isinstance(prompt, list) or not prompt:
        return False
    return len(prompt) > 1 and not isinstance(prompt[0], int)


def _against_token_ids(body: Mapping[str, Any]) -> str | None:
    guided = guided_by(body)
    if guided is not None:
        return f"its decoding is guided ({guided})"
    for field, harmless in _OF_THE_ANSWER_SO_FAR.items():
        value = body.get(field)
        if value is not None and value not in harmless:
            return f"{field} depends on the answer so far"
    for field in _NOT_OF_THE_STREAM:
        if body.get(field) is not None:
            return f"{field} can't be carried over"
    if body.get("echo"):
        return "it echoes its prompt"
    if body.get("include_reasoning") is False:
        return "its reasoning is hidden, and token ids with it"
    if not isinstance(body.get("min_tokens") or 0, int):
        return "its min_tokens is no integer"
    if body.get("min_tokens") and body.get("stop"):
        return "min_tokens and stop together depend on the answer so far"
    if body.get("tools") and body.get("tool_choice") != "none":
        return "its answer may call tools, which only the engine's parser can tell from text"
    if "messages" in body and body.get("logprobs"):
        return "a chat's logprobs have a form of their own"
    if body.get("seed") is not None and not is_greedy(body):
        return "its seed counts from the first token"
    return None


def _against_replay(body: Mapping[str, Any]) -> str | None:
    if is_greedy(body) or body.get("seed") is not None:
        return None
    return "it is sampled without a seed (temperature is not 0), so another run says something else"


def guided_by(body: Mapping[str, Any]) -> str | None:
    """The field that guides its decoding; None: it is free."""
    for field in _GUIDED:
        if body.get(field) is not None:
            return field
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type", "text") != "text":
        return "response_format"
    choice = body.get("tool_choice")
    return "tool_choice" if choice == "required" or isinstance(choice, dict) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
