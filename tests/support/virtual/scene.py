"""A scene: requests are under way, a fault strikes one engine, more requests come, the fault ends, all is quiet."""

from __future__ import annotations

import asyncio
import enum
import json
import re
from dataclasses import dataclass, field
from typing import Any

from support.virtual.client import Answer
from support.virtual.engine import VirtualEngine
from support.virtual.faults import Fault
from support.virtual.fleet import VirtualFleet

DRAIN_GRACE_S = 20.0
BOUND_S = 150.0
"""Within so long after the strike every request has ended."""


class Phase(enum.StrEnum):
    """When the fault strikes."""

    BEFORE = "before the first token"
    MIDWAY = "mid-stream"
    DRAIN = "during drain"


@dataclass
class Asked:
    """One request of the scene."""

    body: dict[str, Any]
    answer: Answer
    task: asyncio.Task[Answer]
    during: bool
    """It was sent while the fault lasted."""

    @property
    def first_worker(self) -> str:
        return (self.answer.header(b"x-pointsman-worker") or b"?").decode()


@dataclass
class Outcome:
    """What came of a scene."""

    asked: list[Asked] = field(default_factory=list)
    struck: list[Asked] = field(default_factory=list)
    """Those that were at the engine when the fault struck."""
    said: set[str] = field(default_factory=set)
    """What status said of the engine while the fault lasted, by any front end."""
    out_after_s: float | None = None
    """After the strike, until no front end would have sent it anything."""
    back_after_s: float | None = None
    """After the fault ended, until every front end could use the engine."""
    struck_ended_s: list[float] = field(default_factory=list)
    """After the strike, when each of those was over."""
    failures: list[str] = field(default_factory=list)
    """What was not right with answers."""


class Scene:
    """Runs one fault in one phase. Engine 0 is the one that it strikes."""

    def __init__(self, fleet: VirtualFleet, fault: Fault, phase: Phase) -> None:
        self.fleet, self.fault, self.phase = fleet, fault, phase
        self.loop = fleet.loop
        self.victim: VirtualEngine = fleet.engines[0]
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """From the first request until everything is quiet."""
        fault, victim = self.fault, self.victim
        if fault.prepare is not None and self.phase is not Phase.BEFORE:
            await fault.prepare(self.fleet, victim)
        for _ in range(6):
            self._ask(during=False)
        await self._until_phase()
        self.outcome.struck = [one for one in self.outcome.asked if self._is_at_victim(one)]
        struck_s = self.loop.time()
        watch = asyncio.create_task(self._watch(struck_s))
        await fault.strike(self.fleet, victim)
        await asyncio.sleep(1.0)
        for _ in range(4):
            self._ask(during=True)
            await asyncio.sleep(1.0)
        await asyncio.sleep(max(0.0, struck_s + fault.lasts_s - self.loop.time()))
        watch.cancel()
        await fault.lift(self.fleet, victim)
        lifted_s = self.loop.time()
        await self._all_over(struck_s + max(BOUND_S, fault.lasts_s + 30.0))
        if self.phase is Phase.DRAIN:
            self._resume()
        await self._back(lifted_s)
        for _ in range(3):
            self._ask(during=False)
        await self._all_over(self.loop.time() + 60.0)
        self.outcome.struck_ended_s = [
            float("inf") if one.answer.ended_s is None else one.answer.ended_s - struck_s for one in self.outcome.struck
        ]
        await self._judge()
        return self.outcome

    def _ask(self, *, during: bool) -> None:
        answer, task, body = self.fleet.chat()
        self.outcome.asked.append(Asked(body, answer, task, during))

    def _is_at_victim(self, one: Asked) -> bool:
        if self.phase is Phase.BEFORE:
            return True  # nobody has an answer, so nobody can tell from outside
        return one.first_worker == f"{self.victim.name}/0" and not one.answer.over.is_set()

    async def _until_phase(self) -> None:
        first = self.outcome.asked
        if self.phase is Phase.BEFORE:
            await self.fleet.until(lambda: self.victim.running > 0)
            await asyncio.sleep(0.3)
            assert not any(one.answer.events for one in first)
            return
        await self.fleet.until(lambda: all(one.answer.tokens >= 10 for one in first))
        if self.phase is Phase.DRAIN:
            for frontend in self.fleet.frontends:
                frontend.drains.begin(self.victim.name, "the test says so", DRAIN_GRACE_S)
            await asyncio.sleep(0.3)

    def _resume(self) -> None:
        for frontend in self.fleet.frontends:
            frontend.drains.resume(self.victim.name)

    # ---- looking on

    async def _watch(self, struck_s: float) -> None:
        """What anybody who looks at status sees."""
        while True:
            usable = []
            for frontend in self.fleet.frontends:
                status = await self.fleet.status(frontend)
                usable.append(self._usable(frontend))
                for row in (*status["workers"], *status["engines"]):
                    if str(row.get("id", row.get("name"))).partition("/")[0] == self.victim.name:
                        self.outcome.said.update(_texts(row))
            if self.outcome.out_after_s is None and not any(usable):
                self.outcome.out_after_s = self.loop.time() - struck_s
            await asyncio.sleep(0.5 if self.loop.time() - struck_s < 20.0 else 5.0)

    def _usable(self, frontend: Any) -> bool:
        return any(
            worker.usable for worker in frontend.ledger.snapshot().workers if worker.id == f"{self.victim.name}/0"
        )

    async def _all_over(self, end_s: float) -> None:
        left_s = end_s - self.loop.time()
        open_ones = [one.task for one in self.outcome.asked if not one.task.done()]
        if open_ones:
            await asyncio.wait(open_ones, timeout=max(0.0, left_s))

    async def _back(self, lifted_s: float) -> None:
        try:
            await self.fleet.until(lambda: all(map(self._usable, self.fleet.frontends)), 120.0, 0.1)
        except TimeoutError:
            return
        self.outcome.back_after_s = self.loop.time() - lifted_s

    # ---- judging

    async def _judge(self) -> None:
        truth = await self.fleet.truth([one.body for one in self.outcome.asked])
        for number, (one, right) in enumerate(zip(self.outcome.asked, truth, strict=True)):
            why = wrong(one.answer, right)
            if why:
                when = "during" if one.during else "before"
                self.outcome.failures.append(f"request {number} ({when} the fault, first at {one.first_worker}): {why}")


def wrong(answer: Answer, right: Answer) -> str:
    """Why an answer is not the right one; empty: it is."""
    if not answer.over.is_set():
        return f"still open after {answer.tokens} tokens"
    if right.status == 200 and not right.events:
        return _plain_wrong(answer, right)
    if not answer.whole:
        return f"status {answer.status}, {answer.tokens} tokens, {answer.error or answer.broken or 'no [DONE]'}"
    if answer.text != right.text:
        return (
            f"{answer.tokens} tokens, other ones than undisturbed: {answer.text[:60]!r}, right is {right.text[:60]!r}"
        )
    for what in ("finish_reasons", "usage_counts"):
        if _of(answer, what) != _of(right, what):
            return f"{what}: {_of(answer, what)}, right is {_of(right, what)}"
    return ""


def _plain_wrong(answer: Answer, right: Answer) -> str:
    """The same of an answer that is no stream."""
    if answer.status != 200 or answer.broken:
        return f"status {answer.status}, {answer.broken or bytes(answer.body[:200])!r}"
    said, due = json.loads(answer.body), json.loads(right.body)
    counts = ("prompt_tokens", "completion_tokens")
    if said["choices"] != due["choices"]:
        return f"{said['choices']}, right is {due['choices']}"
    return "" if all(said["usage"][key] == due["usage"][key] for key in counts) else f"usage is {said['usage']}"


def _of(answer: Answer, what: str) -> Any:
    if what == "usage_counts":
        usage = answer.usage or {}
        return {key: usage.get(key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return getattr(answer, what)


def _texts(row: Any) -> set[str]:
    """All sentences of a part of the status document."""
    if isinstance(row, str):
        return {row}
    if isinstance(row, dict):
        return {text for value in row.values() for text in _texts(value)}
    if isinstance(row, list):
        return {text for value in row for text in _texts(value)}
    return set()


def says(outcome: Outcome, pattern: re.Pattern[str]) -> bool:
    """Whether status gave a reason of that kind."""
    return any(pattern.search(text) for text in outcome.said)


def as_json(outcome: Outcome) -> str:
    """For failing tests."""
    return json.dumps(sorted(outcome.said), indent=1)
