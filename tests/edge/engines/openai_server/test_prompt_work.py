from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pointsman.edge.engines.embedded.state import LONG_PROMPT_BYTES
from pointsman.edge.engines.openai_server.errors import ApiError, bad_request
from pointsman.edge.engines.openai_server.prompt_work import PromptWork
from support.engine_client import Client

LONG = "the quick brown fox " * (1 + LONG_PROMPT_BYTES // 20)
WAIT_S = 30.0


class HeldText:
    """A text whose long prompts are through when somebody lets them be."""

    def __init__(self, text: Any) -> None:
        self._text = text
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text, name)

    def _hold(self) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.may_end.wait(WAIT_S)

    def encode(self, text: str, **options: Any) -> list[int]:
        if len(text) > LONG_PROMPT_BYTES:
            self._hold()
        return list(self._text.encode(text, **options))

    def chat(self, body: Any, raw: bytes) -> list[int]:
        if len(raw) > LONG_PROMPT_BYTES:
            self._hold()
        return list(self._text.chat(body, raw))


def held_text(client: Client) -> HeldText:
    state = client.server.state
    state.text = state.specs._text = held = HeldText(state.text)
    return held


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG, "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
        ("/tokenize", {"prompt": LONG}),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
        ("/kv/hold", {"prompt": LONG}),
        ("/kv/hold", {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
async def test_a_long_prompt_holds_up_nobody(embedded: Client, path: str, body: dict[str, object]) -> None:
    held = held_text(embedded)
    long = asyncio.create_task(embedded.post(path, body))
    try:
        assert await asyncio.to_thread(held.begun.wait, WAIT_S)
        assert (await embedded.complete("short", max_tokens=2)).status == 200
        assert embedded.server.in_flight == path.startswith("/v1/"), "an engine that stops waits for it"
    finally:
        held.may_end.set()
    answer = await long
    assert held.thread is not threading.main_thread()
    # The engine's context is 512 tokens: what can't be computed is said by whoever would compute it.
    assert answer.status == (400 if path.startswith("/v1/") else 200), answer.text
    assert embedded.server.in_flight == 0


async def test_a_client_that_leaves_meanwhile_leaves_nothing(embedded: Client) -> None:
    held = held_text(embedded)
    long = asyncio.create_task(embedded.complete(LONG, max_tokens=1))
    assert await asyncio.to_thread(held.begun.wait, WAIT_S)
    long.cancel()
    async with asyncio.timeout(WAIT_S):
        while embedded.server.in_flight:
            await asyncio.sleep(0.01)
    held.may_end.set()
    assert (await embedded.complete("short", max_tokens=2)).status == 200


async def test_what_is_wrong_with_a_long_body_is_said() -> None:
    work = PromptWork(4)

    def refuse() -> None:
        raise bad_request("no", "prompt")

    for size_bytes in (4, 5):
        with pytest.raises(ApiError, match="no"):
            await work.run(size_bytes, refuse)
    work.close()
    work.close()


async def test_short_bodies_and_engines_without_threads_are_worked_on_at_once() -> None:
    thread = threading.current_thread
    assert await PromptWork(4).run(4, thread) is threading.main_thread()
    assert await PromptWork().run(10**9, thread) is threading.main_thread()
