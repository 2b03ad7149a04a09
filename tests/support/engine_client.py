"""A client of one engine that listens, for tests of its API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Answer:
    status: int
    text: str

    @property
    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.text)
        return body

    @property
    def events(self) -> list[dict[str, Any]]:
        """JSON of an SSE body, without the last `[DONE]`."""
        assert self.text.endswith("data: [DONE]\n\n"), self.text
        return events_of(self.text)


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


@dataclass
class Client:
    session: aiohttp.ClientSession
    server: Any
    """With a `url`."""
    usual: Mapping[str, object] = field(default_factory=dict)
    """Fields of all requests for tokens that say nothing else."""

    async def post(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"content-type": "application/json", **(headers or {})}
        async with self.session.post(self.server.url + path, data=data, headers=fields) as response:
            return Answer(response.status, await response.text())

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.server.url + path) as response:
            return Answer(response.status, await response.text())

    async def chat(self, text: str = "hello", **fields: object) -> Answer:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **self.usual, **fields}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, prompt: object = "hello", **fields: object) -> Answer:
        return await self.post("/v1/completions", {"model": "m", "prompt": prompt, **self.usual, **fields})

    async def faults(self, **fields: object) -> None:
        answer = await self.post("/sim/faults", fields)
        assert answer.status == 200, answer.text


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """Text of one choice of a stream."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


def finish_reasons(events: list[dict[str, Any]]) -> list[str]:
    return [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"] is not None]
