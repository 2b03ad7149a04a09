"""A streamed answer: one SSE event a token, written as the token comes."""

from __future__ import annotations

import msgspec

from pointsman.edge.engines.openai_server.errors import error_body
from pointsman.edge.engines.openai_server.generation import Choice, Generation
from pointsman.edge.engines.openai_server.json_answer import JSON_HEADERS
from pointsman.edge.engines.openai_server.json_texts import JsonTexts
from pointsman.edge.engines.openai_server.logprobs import shown_logprobs, told_of_prompt
from pointsman.edge.engines.openai_server.sampling import Chosen
from pointsman.edge.wire.http1_responder import Responder

_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_encode = msgspec.json.encode
_DONE = b"data: [DONE]\n\n"


class StreamOutput:
    """Writes a generation's events. Everything that does not change from token to token is put together once."""

    def __init__(self, generation: Generation, responder: Responder, texts: JsonTexts) -> None:
        spec = generation.spec
        self.generation = generation
        self.responder = responder
        self._texts = texts
        self._plain = not (spec.return_token_ids or spec.continuous_usage or spec.sampling.logprobs is not None)
        self._shown = [shown_logprobs(generation.text, chat=spec.chat) for _ in generation.choices]
        kind = "chat.completion.chunk" if spec.chat else "text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            _encode(spec.id),
            kind.encode(),
            spec.created,
            _encode(spec.model),
        )
        inner = b'{"index":%d,"delta":{"content":' if spec.chat else b'{"index":%d,"text":'
        self._prefixes = [self._head + inner % choice.index for choice in generation.choices]
        self._after_text = b'},"logprobs":' if spec.chat else b',"logprobs":'
        ids = b'"token_ids":null}]}\n\n'
        tail = b"null," + ids if spec.chat else b'null,"stop_reason":null,"prompt_token_ids":null,' + ids
        self._after_logprobs = b',"finish_reason":' + tail
        self._plain_tail = self._after_text + b"null" + self._after_logprobs

    def start(self) -> None:
        """Status and headers; they go out with the first event."""
        self.responder.start(200, _HEADERS)

    def piece(self, choice: Choice, text: str, token: int, chosen: Chosen | None) -> None:
        """Write one token of a choice."""
        opening = b""
        if choice.tokens == 1:
            if not self.responder.started:
                self.start()
            opening = self._opening(choice, chosen)
        # A token without text is told too, as vLLM does: a stream of them is no stream that stands still.
        if self._plain and choice.finish_reason is None:
            event = self._prefixes[choice.index] + self._texts.of(text) + self._plain_tail
        else:
            event = self._full_event(choice, text, token, chosen)
        self.responder.write(opening + event if opening else event)

    def end(self, *, done: bool = True) -> None:
        """Usage if asked for, `[DONE]`, end of the body."""
        last = b""
        if self.generation.spec.include_usage:
            last = self._head + b'],"usage":%b' % _encode(self.generation.usage().as_json())
            last += self._transfer_params() + b"}\n\n"
        self.responder.write(last + _DONE if done else last)
        self.responder.finish()

    def fail(self, status: int, message: str) -> None:
        """An error instead of the answer or in its midst."""
        if self.responder.started:
            self.responder.write(b"data: " + error_body(status, message) + b"\n\n" + _DONE)
            self.responder.finish()
        else:
            self.responder.send(status, JSON_HEADERS, error_body(status, message))

    def _opening(self, choice: Choice, chosen: Chosen | None) -> bytes:
        """What comes before the first token of a choice: the role in a chat, the prompt where it is echoed."""
        spec = self.generation.spec
        if spec.chat:
            prompt = choice.prompt if spec.return_token_ids else None
            ids = b',"prompt_token_ids":%b,"prompt_text":null' % _encode(prompt)
            return (
                self._head
                + b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
                % choice.index
                + self._usage_so_far()
                + ids
                + b"}\n\n"
            )
        if not spec.echo:
            return b""
        text = _encode(self.generation.text.decode(choice.prompt))
        told = b"null"
        if chosen is not None and spec.sampling.tells_prompt:
            told = _encode(self._shown[choice.index].of(told_of_prompt(choice.prompt, chosen)))
        return self._prefixes[choice.index] + text + self._after_text + told + self._after_logprobs

    def _full_event(self, choice: Choice, text: str, token: int, chosen: Chosen | None) -> bytes:
        spec = self.generation.spec
        event = self._prefixes[choice.index] + _encode(text) + self._after_text + self._logprobs(choice, chosen)
        event += b',"finish_reason":' + _encode(choice.finish_reason)
        if choice.finish_reason is not None or not spec.chat:
            event += b',"stop_reason":%b' % _encode(choice.stop_reason)
        if not spec.chat:
            told = spec.return_token_ids and choice.tokens == 1
            event += b',"prompt_token_ids":%b' % _encode(choice.prompt if told else None)
        event += b',"token_ids":[%d]' % token if spec.return_token_ids else b',"token_ids":null'
        # The params are known with the end of the last choice only.
        params = b"" if spec.include_usage else self._transfer_params()
        return event + b"}]" + self._usage_so_far() + params + b"}\n\n"

    def _logprobs(self, choice: Choice, chosen: Chosen | None) -> bytes:
        generation = self.generation
        if chosen is None or generation.spec.sampling.logprobs is None:
            return b"null"
        return _encode(self._shown[choice.index].of([chosen]))

    def _usage_so_far(self) -> bytes:
        if not self.generation.spec.continuous_usage:
            return b""
        return b',"usage":%b' % _encode(self.generation.usage().as_json())

    def _transfer_params(self) -> bytes:
        params = self.generation.kv_transfer_params
        return b"" if params is None else b',"kv_transfer_params":%b' % _encode(params)
