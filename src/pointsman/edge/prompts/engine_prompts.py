"""A model whose prompts the engine itself tokenizes, by its `/tokenize`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pointsman.core.model.token_keys import pack_tokens
from pointsman.edge.prompts import body_fields as fields
from pointsman.edge.prompts.errors import NotTokenizable, Reason
from pointsman.edge.prompts.local_prompts import Body, EncodedPrompt, completion_prompt
from pointsman.edge.wire.openai import ChatRequest

EngineTokenize = Callable[[str | Sequence[Mapping[str, object]]], Awaitable[Sequence[int] | None]]
"""Token ids of a completion's prompt or of a chat's messages; None if the engine can't. May raise."""


class EnginePrompts:
    """Asks an engine for each prompt: right by definition, at the price of a round trip."""

    def __init__(self, tokenize: EngineTokenize, limit_s: float = 1.0) -> None:
        self._tokenize = tokenize
        self._limit_s = limit_s

    async def encode(self, body: Body) -> EncodedPrompt:
        """Raises NotTokenizable: the engine's route is asked for plain messages and texts only."""
        if isinstance(body, ChatRequest):
            return await self._ask(_messages(body))
        prompt = completion_prompt(body)
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if not prompt.add_special_tokens:
            raise NotTokenizable(Reason.UNUSUAL_FIELD, "the engine is not asked to tokenize without special tokens")
        return await self._ask(prompt.text)

    async def _ask(self, prompt: str | Sequence[Mapping[str, object]]) -> EncodedPrompt:
        try:
            async with asyncio.timeout(self._limit_s):
                tokens = await self._tokenize(prompt)
        except TimeoutError:
            raise NotTokenizable(Reason.TIMED_OUT, f"the engine did not tokenize within {self._limit_s:g} s") from None
        except Exception as error:
            raise NotTokenizable(Reason.ENGINE_FAILED, f"the engine did not tokenize: {error}") from error
        if tokens is None:
            raise NotTokenizable(Reason.ENGINE_FAILED, "the engine has no route that tokenizes")
        return EncodedPrompt(pack_tokens(tokens))


_CHANGING_FIELDS = (
    "tools",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "add_special_tokens",
    "truncate_prompt_tokens",
)


def _messages(body: ChatRequest) -> list[Mapping[str, object]]:
    for name in _CHANGING_FIELDS:
        fields.refuse(getattr(body, name), name)
    messages = fields.array(body.messages, "messages") or []
    read: list[Mapping[str, object]] = [message for message in messages if isinstance(message, dict)]
    if any(not isinstance(message.get("content"), str) for message in read):
        raise NotTokenizable(Reason.MULTIMODAL, "a message whose content is not a string")
    return read
