"""A streamed answer: one SSE event a token, written as the token comes."""

from __future__ import annotations

import msgspec

from pointsman.edge.engines.sim.errors import error_body
from pointsman.edge.engines.sim.faults import StreamFaults
from pointsman.edge.engines.sim.generation import Choice, Generation
from pointsman.edge.wire.http1_responder import Responder

_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_encode = msgspec.json.encode
_JSON_MEMO_LIMIT = 10_000


class JsonTexts:
    """JSON strings of token texts, encoded once each."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def of(self, text: str) -> bytes:
        """The text as a JSON string."""
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= _JSON_MEMO_LIMIT:
                self._known.clear()
            found = self._known[text] = _encode(text)
        return found


class StreamOutput:
    """Writes a generation's events. Everything that does not change from token to token is put together once."""

    def __init__(self, generation: Generation, responder: Responder, faults: StreamFaults, texts: JsonTexts) -> None:
        spec = generation.spec
        self._generation = generation
        self._responder = responder
        self._faults = faults
        self._texts = texts
        self._plain = not (spec.return_token_ids or spec.continuous_usage)
        self._tokens = 0
        kind = "chat.completion.chunk" if spec.chat else "text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            _encode(spec.id),
            kind.encode(),
            spec.created,
            _encode(spec.model),
        )
        inner = b'{"index":%d,"delta":{"content":' if spec.chat else b'{"index":%d,"text":'
        self._prefixes = [self._head + inner % choice.index for choice in generation.choices]
        self._before_reason = (
            b'},"logprobs":null,"finish_reason":' if spec.chat else b',"logprobs":null,"finish_reason":'
        )
        ids = b'"token_ids":null}]}\n\n'
        tail = b"null," + ids if spec.chat else b'null,"stop_reason":null,"prompt_token_ids":null,' + ids
        self._plain_tail = self._before_reason + tail
        responder.start(200, _HEADERS)

    def piece(self, choice: Choice, text: str, token: int) -> None:
        """Write one token of a choice."""
        if self._tokens >= self._faults.after_tokens:
            self._break()
            return
        self._tokens += 1
        opening = self._opening(choice) if choice.tokens == 1 else b""
        if self._plain and choice.finish_reason is None:
            if text:
                event = self._prefixes[choice.index] + self._texts.of(text) + self._plain_tail
                self._responder.write(opening + event if opening else event)
            elif opening:
                self._responder.write(opening)
        else:
            self._responder.write(opening + self._full_event(choice, text, token))
        if self._tokens >= self._faults.after_tokens:
            self._break()

    def end(self) -> None:
        """Usage if asked for, `[DONE]`, end of the body."""
        last = b""
        if self._generation.spec.include_usage:
            last = self._head + b'],"usage":%b}\n\n' % _encode(self._generation.usage().as_json())
        if not self._faults.no_done:
            last += b"data: [DONE]\n\n"
        self._responder.write(last)
        self._responder.finish()

    def _opening(self, choice: Choice) -> bytes:
        """What comes before the first token of a choice: the role in a chat, the prompt where it is echoed."""
        spec = self._generation.spec
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
        text = _encode(self._generation.tokenizer.decode(choice.prompt))
        return self._prefixes[choice.index] + text + self._plain_tail

    def _full_event(self, choice: Choice, text: str, token: int) -> bytes:
        spec = self._generation.spec
        event = self._prefixes[choice.index] + _encode(text) + self._before_reason + _encode(choice.finish_reason)
        if choice.finish_reason is not None or not spec.chat:
            event += b',"stop_reason":%b' % _encode(choice.stop_reason)
        if not spec.chat:
            told = spec.return_token_ids and choice.tokens == 1
            event += b',"prompt_token_ids":%b' % _encode(choice.prompt if told else None)
        event += b',"token_ids":[%d]' % token if spec.return_token_ids else b',"token_ids":null'
        return event + b"}]" + self._usage_so_far() + b"}\n\n"

    def _usage_so_far(self) -> bytes:
        if not self._generation.spec.continuous_usage:
            return b""
        return b',"usage":%b' % _encode(self._generation.usage().as_json())

    def _break(self) -> None:
        """A fault that was asked for: an error event, or the connection cut in the middle."""
        if self._generation.done.done():
            return
        if self._faults.error_event:
            self._responder.write(b"data: " + error_body(500, self._faults.message) + b"\n\ndata: [DONE]\n\n")
            self._responder.finish()
            self._generation.complete()
        else:
            self._responder.flush_head()
            self._generation.cut()
