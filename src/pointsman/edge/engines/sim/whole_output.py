"""An answer that is sent when it is complete."""

from __future__ import annotations

import msgspec

from pointsman.edge.engines.sim.errors import error_body
from pointsman.edge.engines.sim.faults import StreamFaults
from pointsman.edge.engines.sim.generation import Choice, Generation
from pointsman.edge.wire.http1_responder import Responder

JSON_HEADERS = ((b"content-type", b"application/json"),)


class WholeOutput:
    """Collects all choices and answers with one JSON object."""

    def __init__(self, generation: Generation, responder: Responder, faults: StreamFaults) -> None:
        self._generation = generation
        self._responder = responder
        self._faults = faults
        self._texts: list[list[str]] = [[] for _ in generation.choices]
        self._tokens: list[list[int]] = [[] for _ in generation.choices]
        self._count = 0

    def piece(self, choice: Choice, text: str, token: int) -> None:
        """Keep one token of a choice."""
        self._count += 1
        self._texts[choice.index].append(text)
        self._tokens[choice.index].append(token)
        if self._count >= self._faults.after_tokens:
            self._break()

    def end(self) -> None:
        """Answer."""
        generation = self._generation
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
        body["kv_transfer_params"] = None
        self._responder.send(200, JSON_HEADERS, msgspec.json.encode(body))

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
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._token_ids(choice),
        }

    def _text_choice(self, choice: Choice) -> dict[str, object]:
        spec = self._generation.spec
        prompt = self._generation.tokenizer.decode(choice.prompt) if spec.echo else ""
        return {
            "index": choice.index,
            "text": prompt + "".join(self._texts[choice.index]),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._token_ids(choice),
            "prompt_logprobs": None,
            "prompt_token_ids": choice.prompt if spec.return_token_ids else None,
        }

    def _token_ids(self, choice: Choice) -> list[int] | None:
        return self._tokens[choice.index] if self._generation.spec.return_token_ids else None

    def _break(self) -> None:
        """A fault that was asked for: an error answer, or the connection cut without one."""
        if self._generation.done.done():
            return
        if self._faults.error_event:
            self._responder.send(500, JSON_HEADERS, error_body(500, self._faults.message))
            self._generation.complete()
        else:
            self._generation.cut()
