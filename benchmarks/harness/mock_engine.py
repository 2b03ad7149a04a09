"""A fast mock engine: OpenAI's streaming answers at a fixed pace, one transport write a chunk.

One process listens on several ports, so that a router sees several engines while the harness pays for one event loop.
`python -m harness.mock_engine --ports 9001,9002 --itl-ms 0`. The pace changes at run time: `POST /mock/pace
{"itl_ms": 5}`. It poses as vLLM on the routes that routers probe. With `--tokenizer DIRECTORY` it sends KV events as
well, and holds from the start what `--beginnings` (JSON, a list of mock_kv.Beginnings) says.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httptools
import msgspec
import uvloop

from harness import mock_answers as answers
from harness.mock_kv import Beginnings, MockKvCache, MockTokenizer, hold


class Ask(msgspec.Struct):
    """The fields of a request that the mock obeys."""

    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 50

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))


class Pace(msgspec.Struct):
    """Time between tokens; 0 = as fast as the event loop turns. Whole milliseconds."""

    itl_ms: int = 0


@dataclass(frozen=True, slots=True)
class KvSide:
    """What an engine needs beside its answers to be looked up exactly."""

    cache: MockKvCache
    tokenizer: MockTokenizer
    probes: dict[bytes, bytes]
    """Answers that tell of it."""

    @classmethod
    def of(cls, cache: MockKvCache, tokenizer: MockTokenizer, directory: str) -> KvSide:
        """The side of one engine whose cache is open."""
        sources = answers.json_answer(cache.sources)
        return cls(cache, tokenizer, {answers.KV_SOURCES: sources, answers.MODELS: answers.models(directory)})


class Pacer:
    """Hands every stream its next token in time.

    At 0 ms each turn of the loop gives every stream one token. Otherwise a wheel of 1 ms slots gives each stream one
    every `itl_ms`: one timer a millisecond, however many streams are open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.itl_ms = 0
        self._unpaced: list[MockConnection] = []
        self._slots: dict[int, list[MockConnection]] = {}
        self._tick = 0
        self._origin_s = 0.0
        self._ticking = False
        self._turning = False

    def add(self, stream: MockConnection) -> None:
        if self.itl_ms == 0:
            self._unpaced.append(stream)
            if not self._turning:
                self._turning = True
                self._loop.call_soon(self._turn)
            return
        if not self._ticking:
            self._start_wheel()
        self._slots.setdefault(self._tick + self.itl_ms, []).append(stream)

    def _turn(self) -> None:
        streams, self._unpaced = self._unpaced, []
        alive = [stream for stream in streams if stream.emit()]
        self._unpaced = alive + self._unpaced
        self._turning = bool(self._unpaced)
        if self._turning:
            self._loop.call_soon(self._turn)

    def _start_wheel(self) -> None:
        self._ticking = True
        self._origin_s = time.perf_counter() - self._tick / 1e3
        self._loop.call_later(0.001, self._advance)

    def _advance(self) -> None:
        due = int((time.perf_counter() - self._origin_s) * 1e3)
        while self._tick < due:
            self._tick += 1
            for stream in self._slots.pop(self._tick, ()):
                if stream.emit():
                    self._slots.setdefault(self._tick + max(self.itl_ms, 1), []).append(stream)
        if self._slots:
            self._loop.call_later(0.001, self._advance)
        else:
            self._ticking = False


class MockConnection(asyncio.Protocol):
    """One client connection; answers one request at a time, in order."""

    __slots__ = (
        "_asked",
        "_body",
        "_busy",
        "_chat",
        "_closed",
        "_kv",
        "_left",
        "_pacer",
        "_parser",
        "_task",
        "_tokens",
        "_transport",
        "_url",
        "_usage",
    )

    def __init__(self, pacer: Pacer, kv: KvSide | None = None) -> None:
        self._pacer = pacer
        self._kv = kv
        self._parser = httptools.HttpRequestParser(self)
        self._asked: deque[tuple[bytes, bytes, bytes]] = deque()
        self._busy = False
        self._closed = False
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._asked.append((self._parser.get_method(), self._url.partition(b"?")[0], bytes(self._body)))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._asked and not self._busy:
            method, path, body = self._asked.popleft()
            if method == b"GET":
                self._transport.write((self._kv.probes.get(path) if self._kv else None) or answers.probe(path))
            elif path in answers.GENERATING:
                self._generate(path, body)
            elif path == b"/mock/pace":
                self._pacer.itl_ms = msgspec.json.decode(body, type=Pace).itl_ms
                self._transport.write(answers.json_answer({}))
            else:
                self._transport.write(answers.json_answer({}))

    def _generate(self, path: bytes, body: bytes) -> None:
        ask = msgspec.json.decode(body, type=Ask)
        self._chat = path == answers.CHAT
        if not ask.stream and self._kv and self._chat:
            self._busy = True
            self._task = asyncio.ensure_future(self._compute(self._kv, ask.tokens, body))
            return
        if not ask.stream:
            self._transport.write(answers.whole_answer(self._chat, ask.tokens))
            return
        self._busy = True
        self._tokens = ask.tokens
        self._usage = answers.usage_event(ask.tokens) if ask.wants_usage else b""
        self._left = ask.tokens
        if self._chat:
            self._transport.write(answers.STREAM_HEAD + answers.ROLE)
        else:
            self._transport.write(answers.STREAM_HEAD + answers.TEXT)
            self._left -= 1
        self._pacer.add(self)

    async def _compute(self, kv: KvSide, tokens: int, body: bytes) -> None:
        """The slow way: the prompt is tokenized, and its blocks are announced before the answer."""
        packed = await kv.tokenizer.tokens(body)
        kv.cache.store(packed)
        self._transport.write(answers.whole_answer(True, tokens, len(packed) // 4))
        self._next()

    def emit(self) -> bool:
        """Write the next token, or the end. False = nothing more to come."""
        if self._closed:
            return False
        if self._left > 0:
            self._left -= 1
            self._transport.write(answers.TOKEN if self._chat else answers.TEXT)
            return True
        self._transport.write(answers.stream_end(self._chat, self._usage))
        if self._kv:
            self._kv.cache.computed(self._tokens)
        self._next()
        return False


async def serve(ports: list[int], itl_ms: int, directory: str | None, beginnings: list[Beginnings]) -> None:
    """Listen on all ports of 127.0.0.1 until the process is stopped."""
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop)
    pacer.itl_ms = itl_ms
    sides: list[KvSide] | list[None] = [None] * len(ports)
    if directory is not None:
        sides = await _kv_sides(len(ports), directory, beginnings)
    for port, side in zip(ports, sides, strict=True):
        await loop.create_server(lambda kv=side: MockConnection(pacer, kv), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


async def _kv_sides(count: int, directory: str, beginnings: list[Beginnings]) -> list[KvSide]:
    tokenizer = MockTokenizer(answers.MODEL)
    await tokenizer.load(Path(directory))
    caches = [MockKvCache() for _ in range(count)]
    for cache in caches:
        cache.open()
    await hold(caches, tokenizer, beginnings)
    return [KvSide.of(cache, tokenizer, directory) for cache in caches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", required=True, help="comma-separated")
    parser.add_argument("--itl-ms", type=int, default=0)
    parser.add_argument("--tokenizer", metavar="DIRECTORY", help="send KV events; prompts are tokenized with this")
    parser.add_argument("--beginnings", default="[]", help="what the engines hold from the start")
    options = parser.parse_args()
    beginnings = msgspec.json.decode(options.beginnings, type=list[Beginnings])
    ports = [int(port) for port in options.ports.split(",")]
    uvloop.run(serve(ports, options.itl_ms, options.tokenizer, beginnings))


if __name__ == "__main__":
    main()
