"""Requests as the embedded engine takes them."""

from __future__ import annotations

from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.requests import ChatBody, CompletionBody, GenerationBody
from pointsman.edge.engines.openai_server.spec import SpecMaker

_TEXT = "text"
_NOT_THERE = (
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids"),
    *("bad_words", "logits_processors", "use_beam_search", "truncate_prompt_tokens", "prompt_embeds"),
)
"""Fields of vLLM that would change the answer."""


class EmbeddedSpecs(SpecMaker):
    """Says no to what would change the answer and is not there, instead of answering something else."""

    def refuse(self, body: GenerationBody) -> None:
        """Raises `ApiError` that names the field."""
        form = (body.response_format or {}).get("type", _TEXT)
        if form != _TEXT:
            raise bad_request(f"response_format of type {form!r} is not supported by this engine.", "response_format")
        if body.prompt_logprobs is not None:
            raise bad_request("prompt_logprobs are not supported by this engine.", "prompt_logprobs")
        for name in _NOT_THERE:
            if getattr(body, name):
                raise bad_request(f"{name} is not supported by this engine; leave it out.", name)
        if body.n is not None and body.n > 1 and body.temperature == 0:
            raise bad_request(f"n must be 1 when using greedy sampling, got {body.n}.", "n")
        if isinstance(body, ChatBody):
            if body.echo:
                raise bad_request("echo is not supported in chats by this engine.", "echo")
            if isinstance(body.tool_choice, dict) or body.tool_choice == "required":
                raise bad_request(
                    "this engine shows tools to the model and calls none: tool_choice may be none or auto.",
                    "tool_choice",
                )
        elif isinstance(body, CompletionBody):
            if body.echo and body.logprobs is not None and body.kv_transfer_params is not None:
                raise bad_request(
                    "logprobs of an echoed prompt need all of it to be computed here: leave kv_transfer_params out.",
                    "kv_transfer_params",
                )
            if body.suffix:
                raise bad_request("suffix is not currently supported.", "suffix")
            if body.best_of is not None and body.best_of != (body.n or 1):
                raise bad_request("best_of is not supported by this engine; leave it out.", "best_of")
