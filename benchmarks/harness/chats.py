"""Multi-turn chats over an OpenAI front end: what of each prompt was cached, and how long the first token took."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from harness.processes import BenchmarkError
from harness.prompts import words

_ANSWER_TOKENS = 12
Take = Callable[["Chat", bool], Coroutine[None, None, None]]
"""Sends one chat's prompt; True: as a repetition."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a chat and what came of it."""

    session: int
    turn: int
    repeated: bool
    """The very prompt of the turn before, sent once more."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    new_share: float
    """Of the prompt: tokens that were neither in the session's prompt before nor in the answer to it; 1 at first."""
    ttft_s: float
    worker: str
    """Engine that answered, as the front end names it."""


@dataclass(slots=True)
class Chat:
    """One session: a system prompt that all sessions share, then turns that grow the prompt by a fixed share."""

    number: int
    rng: random.Random
    messages: list[dict[str, str]]
    known_tokens: int = 0
    """Of the next prompt: what the engine that answered last has seen, before the chat template closes the turn."""
    turns: list[Turn] = field(default_factory=list)

    def ask(self, growth: float, opening_words: int) -> None:
        """Append a user's message: the opening, or one that makes the prompt longer by `growth`."""
        so_far = sum(len(message["content"].split()) for message in self.messages)
        count = max(24, int(so_far * growth)) if self.turns else opening_words
        self.messages.append({"role": "user", "content": words(count, self.rng)})


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer, read to its end."""

    text: str
    ttft_s: float
    usage: dict[str, Any]
    worker: str


async def stream_chat(session: aiohttp.ClientSession, url: str, model: str, messages: list[dict[str, str]]) -> Answer:
    """One streamed chat request. Raises BenchmarkError on any status but 200 or an answer without usage."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": _ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first_s: float | None = None
    parts: list[str] = []
    usage: dict[str, Any] | None = None
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            raise BenchmarkError(f"a chat was answered with {answer.status}: {(await answer.text())[:300]}")
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = msgspec.json.decode(line[6:])
            for choice in event.get("choices", ()):
                text = choice["delta"].get("content")
                if text:
                    first_s = first_s or time.perf_counter() - started
                    parts.append(text)
            usage = event.get("usage") or usage
        worker = answer.headers.get("x-pointsman-worker", "")
    if usage is None:
        raise BenchmarkError("the answer carries no usage; this benchmark needs the engine's count of cached tokens")
    return Answer("".join(parts), first_s or time.perf_counter() - started, usage, worker)


async def one_turn(session: aiohttp.ClientSession, url: str, model: str, chat: Chat, repeated: bool) -> None:
    """Send the chat's prompt as it stands and record what came of it; a new answer becomes part of the chat."""
    answer = await stream_chat(session, url, model, chat.messages)
    prompt_tokens = int(answer.usage["prompt_tokens"])
    completion_tokens = int(answer.usage["completion_tokens"])
    details = answer.usage.get("prompt_tokens_details") or {}
    chat.turns.append(
        Turn(
            session=chat.number,
            turn=len(chat.turns),
            repeated=repeated,
            prompt_tokens=prompt_tokens,
            cached_tokens=int(details.get("cached_tokens") or 0),
            completion_tokens=completion_tokens,
            new_share=1 - min(chat.known_tokens, prompt_tokens) / prompt_tokens,
            ttft_s=answer.ttft_s,
            worker=answer.worker,
        )
    )
    if not repeated:
        chat.messages.append({"role": "assistant", "content": answer.text})
        chat.known_tokens = prompt_tokens + completion_tokens


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """How the chats of one arm go."""

    sessions: int
    turns: int
    growth: float
    concurrency: int
    system_words: int = 60
    opening_words: int = 120


async def run_chats(url: str, model: str, plan: ChatPlan, seed: int) -> list[Turn]:
    """All turns of all sessions: within a turn the sessions come in a random order, several at a time.

    Then the last prompt of each is sent once more, unchanged: these are marked `repeated`.
    """
    rng = random.Random(seed)
    system = words(plan.system_words, rng)
    opening = [{"role": "system", "content": system}] if system else []
    chats = [Chat(i, random.Random(rng.random()), list(opening)) for i in range(plan.sessions)]
    gate = asyncio.Semaphore(plan.concurrency)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def take(chat: Chat, repeated: bool) -> None:
            async with gate:
                await one_turn(session, url, model, chat, repeated)

        for _ in range(plan.turns):
            for chat in chats:
                chat.ask(plan.growth, plan.opening_words)
            await _all_in_random_order(chats, rng, take, repeated=False)
        for chat in chats:
            chat.messages.pop()  # the answer: the prompt is now the one that was sent last
        await _all_in_random_order(chats, rng, take, repeated=True)
    return [turn for chat in chats for turn in chat.turns]


async def _all_in_random_order(chats: list[Chat], rng: random.Random, take: Take, *, repeated: bool) -> None:
    order = rng.sample(chats, len(chats))
    async with asyncio.TaskGroup() as group:
        for chat in order:
            group.create_task(take(chat, repeated))
