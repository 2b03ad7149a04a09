"""A mock engine whose tokens are numbered, so that a client sees whether one is missing or comes twice.

`python -m harness.numbered_engine --ports 9001,9002 --itl-ms 50` is an engine a port, each a forked process of its own:
one that comes back costs no start of Python. On SIGUSR1 the next one in turn is killed (kill -9) and comes back
`--back-after-s` later. The answer to any prompt is ` 0 1 2 3 …`. It speaks vLLM's contract of token ids:
`return_token_ids` tells those of prompt and answer, and a prompt of ids that ends with those of ` 0` to ` 6` is
answered with ` 7 8 9 …`. So what goes on elsewhere is right only if it does where it broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import NoReturn

import msgspec
import uvloop

from harness import mock_answers as answers
from harness.mock_engine import Ask, MockConnection, Pacer

FIRST_ID = 1_000_000
"""Id of the token ` 0`; smaller ones are of prompts."""
POLL_S = 0.1
_PROMPT_IDS = b"[11,12,13,14,15,16,17,18]"

_EVENT = (
    b'data: {"id":"cmpl-soak","object":"text_completion","created":1795983439,"model":"%s","choices":[{"index":0,'
    b'"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]}\n\n'
)


class NumberedAsk(Ask):
    """The fields of a request that matter here."""

    prompt: str | list[int] = ""
    return_token_ids: bool = False

    @property
    def first(self) -> int:
        """Number of the next token."""
        return 0 if isinstance(self.prompt, str) else sum(one >= FIRST_ID for one in self.prompt)


def event(text: str, ids: bytes, *, finish: bytes = b"null", prompt_ids: bytes = b"null") -> bytes:
    """One event of a completion's stream, as a chunk."""
    model = answers.MODEL.encode()
    data = _EVENT % (model, msgspec.json.encode(text), finish, prompt_ids, ids)
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def token(number: int, *, ids: bool) -> bytes:
    """The event of one token."""
    return event(f" {number}", b"[%d]" % (FIRST_ID + number) if ids else b"null")


class NumberedConnection(MockConnection):
    """One client connection."""

    __slots__ = ("_ids", "_number")

    def _generate(self, path: bytes, body: bytes) -> None:
        ask = msgspec.json.decode(body, type=NumberedAsk)
        if not ask.stream or path != answers.TEXT_PATH:
            super()._generate(path, body)
            return
        self._busy, self._chat = True, False
        self._usage = answers.usage_event(ask.tokens) if ask.wants_usage else b""
        self._number, self._ids, self._left = ask.first, ask.return_token_ids, ask.tokens
        first = b""
        if self._ids:
            first = event(f" {self._number}", b"[%d]" % (FIRST_ID + self._number), prompt_ids=_PROMPT_IDS)
        self._transport.write(answers.STREAM_HEAD + (first or token(self._number, ids=False)))
        self._number, self._left = self._number + 1, self._left - 1
        self._pacer.add(self)

    def emit(self) -> bool:
        """Write the next token, or the end. False = nothing more to come."""
        if self._closed:
            return False
        if self._left > 0:
            self._transport.write(token(self._number, ids=self._ids))
            self._number, self._left = self._number + 1, self._left - 1
            return True
        end = event("", b"[]" if self._ids else b"null", finish=b'"length"')
        self._transport.write(end + self._usage + answers.DONE)
        self._next()
        return False


async def serve(port: int, itl_ms: int) -> None:
    """Listen on 127.0.0.1 until the process is stopped."""
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop)
    pacer.itl_ms = itl_ms
    await loop.create_server(lambda: NumberedConnection(pacer), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


class Engines:
    """The parent of all: kills one when it is told to, starts those anew that are due. Runs until it is stopped.

    Args:
        serve: what an engine does, given its port.
    """

    def __init__(self, ports: list[int], back_after_s: float, serve: Callable[[int], None]) -> None:
        self._ports = ports
        self._back_after_s = back_after_s
        self._serve = serve
        self._pids: dict[int, int] = {}
        self._due_s = dict.fromkeys(ports, 0.0)
        self._killed = 0
        self._kill = False

    def run(self) -> NoReturn:
        """Never ends by itself."""
        signal.signal(signal.SIGUSR1, self._on_signal)
        while True:
            self.turn(time.monotonic())
            time.sleep(POLL_S)

    def turn(self, now_s: float) -> None:
        """Do what is due."""
        for port in [port for port, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[port]
            self._pids[port] = self._fork(port)
        if self._kill:
            self._kill = False
            self._kill_next()
        for port, pid in tuple(self._pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._pids[port]
                self._due_s[port] = now_s + self._back_after_s

    def stop(self) -> None:
        """Kill all."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._kill = True

    def _kill_next(self) -> None:
        pid = self._pids.get(self._ports[self._killed % len(self._ports)])
        self._killed += 1
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _fork(self, port: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGUSR1, signal.SIG_DFL)
                self._serve(port)
            finally:
                os._exit(1)
        return pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", required=True, help="comma-separated")
    parser.add_argument("--itl-ms", type=int, default=50)
    parser.add_argument("--back-after-s", type=float, default=5.0)
    options = parser.parse_args()
    ports = [int(port) for port in options.ports.split(",")]
    gc.freeze()
    Engines(ports, options.back_after_s, lambda port: uvloop.run(serve(port, options.itl_ms))).run()


if __name__ == "__main__":
    main()
