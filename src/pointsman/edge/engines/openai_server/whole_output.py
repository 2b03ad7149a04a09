"""An answer that is sent when it is complete."""

from __future__ import annotations

import msgspec

from pointsman.edge.engines.openai_server.errors import error_body
from pointsman.edge.engines.openai_server.generation import Choice, Generation
from pointsman.edge.engines.openai_server.json_answer import JSON_HEADERS
from pointsman.edge.engines.openai_server.logprobs import shown_logprobs, told_of_prompt
from pointsman.edge.engines.openai_server.sampling import Chosen
from pointsman.edge.wire.http1_responder import Responder


class WholeOutput:
    """Collects all choices and answers with one JSON object."""

    def __init__(self, generation: Generation, responder: Responder) -> None:
        self.generation = generation
        self.responder = responder
        self._texts: list[list[str]] = [[] for _ in generation.choices]
        self._tokens: list[list[int]] = [[] for _ in generation.choices]
        self._chosen: list[list[Chosen]] = [[] for _ in generation.choices]

    def piece(self, choice: Choice, text: str, token: int, chosen: Chosen | None) -> None:
        """Keep one token of a choice."""
        self._texts[choice.index].append(text)
        self._tokens[choice.index].append(token)
        if chosen is not None:
            self._chosen[choice.index].append(chosen)

    def fail(self, status: int, message: str) -> None:
        """An error instead of the answer."""
        self.responder.send(status, JSON_HEADERS, error_body(status, message))

    def end(self) -> None:
        """Answer."""
        generation = self.generation
        spec = generation.spec
        body: dict[str, object] = {
            "id": spec.id,
            "object": "chat.completion" if spec.chat else "text_completion",
            "created": spec.created,
            "model": spec.model,
            "choices": [self._chat_choice(c) if spec.chat else self._text_choice(c) for c in generation.choices],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": generation.usage().as_json(),
        }
        if spec.chat:
            body["prompt_logprobs"] = None
            body["prompt_token_ids"] = generation.choices[0].prompt if spec.return_token_ids else None
        body["kv_transfer_params"] = generation.kv_transfer_params
        self.responder.send(200, JSON_HEADERS, msgspec.json.encode(body))

    def _chat_choice(self, choice: Choice) -> dict[str, object]:
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": "".join(self._texts[choice.index]),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "tool_calls": [],
                "reasoning": None,
            },
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._token_ids(choice),
        }

    def _text_choice(self, choice: Choice) -> dict[str, object]:
        spec = self.generation.spec
        prompt = self.generation.text.decode(choice.prompt) if spec.echo else ""
        return {
            "index": choice.index,
            "text": prompt + "".join(self._texts[choice.index]),
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._token_ids(choice),
            "prompt_logprobs": None,
            "prompt_token_ids": choice.prompt if spec.return_token_ids else None,
        }

    def _token_ids(self, choice: Choice) -> list[int] | None:
        return self._tokens[choice.index] if self.generation.spec.return_token_ids else None

    def _logprobs(self, choice: Choice) -> dict[str, object] | None:
        generation = self.generation
        chosen = self._chosen[choice.index]
        if generation.spec.sampling.logprobs is None or not chosen:
            return None
        if generation.spec.sampling.tells_prompt:
            chosen = told_of_prompt(choice.prompt, chosen[0]) + chosen
        return shown_logprobs(generation.text, chat=generation.spec.chat).of(chosen)
