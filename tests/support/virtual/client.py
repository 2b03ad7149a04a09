"""A client of front ends in virtual time: reads streams event by event, and checks that they are proper ones."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from pointsman.edge.wire.errors import UpstreamError
from pointsman.edge.wire.headers import Headers, first_value
from pointsman.edge.wire.http1_pool import UpstreamPool
from pointsman.edge.wire.origin import Origin, request_head

JSON = [(b"content-type", b"application/json")]


@dataclass
class Answer:
    """What came of one request, while it comes and after."""

    status: int = 0
    headers: Headers = ()
    body: bytearray = field(default_factory=bytearray)
    events: list[Any] = field(default_factory=list)
    done: bool = False
    """`[DONE]` has come."""
    ended_s: float | None = None
    broken: str = ""
    """Why the connection ended before the answer did."""
    first_s: float | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def error(self) -> Any:
        """The error event, or the error of a plain answer."""
        for event in self.events:
            if event.get("error"):
                return event["error"]
        if self.status >= 400:
            return json.loads(self.body or b"{}").get("error")
        return None

    @property
    def text(self) -> str:
        """All pieces of text, in their order."""
        return "".join(
            choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            for event in self.events
            for choice in event.get("choices") or ()
        )

    @property
    def tokens(self) -> int:
        """Events with text so far: one a token."""
        return sum(
            bool(choice.get("text") or (choice.get("delta") or {}).get("content"))
            for event in self.events
            for choice in event.get("choices") or ()
        )

    @property
    def finish_reasons(self) -> list[str]:
        """There should be one."""
        return [
            choice["finish_reason"]
            for event in self.events
            for choice in event.get("choices") or ()
            if choice.get("finish_reason")
        ]

    @property
    def usage(self) -> Any:
        """The last usage told."""
        return next((event["usage"] for event in reversed(self.events) if event.get("usage")), None)

    def header(self, name: bytes) -> bytes | None:
        return first_value(self.headers, name)

    @property
    def whole(self) -> bool:
        """A proper stream from its beginning to its end, without an error."""
        return self.status == 200 and self.done and not self.broken and self.error is None


class _Reader:
    """Sink of one answer."""

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop) -> None:
        self._answer, self._loop = answer, loop
        self._rest = b""

    def on_head(self, status: int, headers: Headers) -> None:
        self._answer.status, self._answer.headers = status, headers

    def on_data(self, data: bytes) -> None:
        answer = self._answer
        answer.body += data
        if first_value(answer.headers, b"content-type") != b"text/event-stream; charset=utf-8":
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            assert event.startswith(b"data: "), event
            assert not answer.done, "something comes behind [DONE]"
            if event == b"data: [DONE]":
                answer.done = True
            else:
                answer.events.append(json.loads(event[6:]))
                answer.first_s = answer.first_s or self._loop.time()

    def on_end(self) -> None:
        if self._rest:
            self._answer.broken = f"it ends within an event: {self._rest!r}"
        self._over()

    def on_error(self, error: UpstreamError) -> None:
        self._answer.broken = str(error)
        self._over()

    def _over(self) -> None:
        self._answer.ended_s = self._loop.time()
        self._answer.over.set()


class VirtualClient:
    """Sends requests over connections of its own."""

    def __init__(self) -> None:
        self.pool = UpstreamPool()
        self._tasks: set[asyncio.Task[Answer]] = set()

    def start(self, url: str, path: str, body: Any, headers: Any = ()) -> tuple[Answer, asyncio.Task[Answer]]:
        """Begin a request; the answer fills while it comes."""
        answer = Answer()
        task = asyncio.create_task(self._run(answer, url, "POST", path, json.dumps(body).encode(), headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answer, task

    async def ask(self, url: str, method: str, path: str, body: Any = None, headers: Any = ()) -> Answer:
        """A whole exchange."""
        data = b"" if body is None else json.dumps(body).encode()
        return await self._run(Answer(), url, method, path, data, headers)

    async def _run(self, answer: Answer, url: str, method: str, path: str, body: bytes, headers: Any) -> Answer:
        origin = Origin.parse(url)
        head = request_head(method.encode(), path.encode(), origin, [*JSON, *headers], len(body))
        connection = await self.pool.connect(origin, fresh=True)
        connection.send(head, body, _Reader(answer, asyncio.get_running_loop()))
        try:
            await answer.over.wait()
        except asyncio.CancelledError:
            connection.abort()
            raise
        return answer

    async def close(self) -> None:
        """End what is still running."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.close()
