"""A scene of prefill and decode apart: a fault strikes one of two engines for prompts, or of two that answer."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pointsman.core.ledger.snapshot import PROMPTS_ONLY
from pointsman.edge.serving.exchange import Exchange
from support.virtual.client import Answer
from support.virtual.engine import VirtualEngine
from support.virtual.faults import Fault
from support.virtual.fleet import VirtualFleet
from support.virtual.scene import wrong

PREFILLS = DECODES = 2


class Moment(enum.StrEnum):
    """When the fault strikes."""

    PREFILL = "during the prefill leg"
    BETWEEN = "between the legs"
    TRANSFER = "during the transfer"


class Side(enum.StrEnum):
    """Which engine it strikes."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass
class ApartOutcome:
    """What came of it."""

    struck: int = 0
    """Requests that were there at that very moment."""
    over_after_s: float = 0.0
    """After the strike, until all that were sent before had their answers."""
    back_after_s: float | None = None
    failures: list[str] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)
    """What was counted or held at the end."""


class ApartScene:
    """Runs one fault at one moment."""

    def __init__(self, fleet: VirtualFleet, fault: Fault, moment: Moment, side: Side) -> None:
        self.fleet, self.fault, self.moment = fleet, fault, moment
        self.loop = fleet.loop
        self.victim: VirtualEngine = fleet.engines[0 if side is Side.PREFILL else PREFILLS]
        self.side = side
        self.outcome = ApartOutcome()
        self._asked: list[tuple[Answer, asyncio.Task[Answer], dict[str, Any]]] = []

    async def run(self) -> ApartOutcome:
        """From the first request until everything is quiet."""
        fault, outcome = self.fault, self.outcome
        await asyncio.sleep(5.0)  # what is asked of engines when they join is over
        self._ask(4)
        await self.fleet.until(lambda: self._there() > 0, every_s=0.0001 if self.moment is Moment.BETWEEN else 0.01)
        if self.moment is not Moment.BETWEEN:
            await asyncio.sleep(0.1)
        outcome.struck = self._there()
        struck_s = self.loop.time()
        await fault.strike(self.fleet, self.victim)
        before = [task for _, task, _ in self._asked]
        await asyncio.sleep(1.0)
        self._ask(2)
        await asyncio.wait(before, timeout=fault.ends_within_s + 60.0)
        outcome.over_after_s = max((a.ended_s or float("inf")) for a, _, _ in self._asked[: len(before)]) - struck_s
        await asyncio.sleep(max(0.0, struck_s + fault.lasts_s - self.loop.time()))
        await fault.lift(self.fleet, self.victim)
        await self._back()
        self._ask(2)
        await asyncio.wait([task for _, task, _ in self._asked], timeout=120.0)
        await self._judge()
        return outcome

    def _ask(self, count: int) -> None:
        for number in range(count):
            streamed = number % 2 == 0
            self._asked.append(self.fleet.chat(max_tokens=30) if streamed else self.fleet.plain(max_tokens=30))

    def _there(self) -> int:
        """Requests that are at the moment, at the engine that is to be struck."""
        name = f"{self.victim.name}/0"
        running = [one for frontend in self.fleet.frontends for one in frontend.dispatcher._running.values()]
        return sum(self._is_at(one) for one in running if name in self._workers(one))

    def _workers(self, exchange: Exchange) -> tuple[str, ...]:
        split = exchange.split
        if split is None:
            return ()
        return (split.other.worker,) if self.side is Side.PREFILL else (split.answering.worker,)

    def _is_at(self, exchange: Exchange) -> bool:
        split = exchange.split
        assert split is not None
        if self.moment is Moment.PREFILL:
            return exchange.waits_for_leg and self.fleet.engines[0].running > 0
        if split.done or split.fetch_from_ms is None:
            return False
        fetching = any(engine.kv._fetches for engine in self.fleet.engines[PREFILLS:] if engine.server is not None)
        return fetching is (self.moment is Moment.TRANSFER)

    async def _back(self) -> None:
        name, since_s = f"{self.victim.name}/0", self.loop.time()

        def usable() -> bool:
            workers = [w for f in self.fleet.frontends for w in f.ledger.snapshot().workers if w.id == name]
            return all(w.usable or w.state == PROMPTS_ONLY for w in workers)

        try:
            await self.fleet.until(usable, 120.0, 0.1)
        except TimeoutError:
            return
        self.outcome.back_after_s = self.loop.time() - since_s

    async def _judge(self) -> None:
        truth = await self.fleet.truth([body for _, _, body in self._asked])
        for number, ((answer, _, _), right) in enumerate(zip(self._asked, truth, strict=True)):
            why = wrong(answer, right)
            if why:
                self.outcome.failures.append(f"request {number}: {why}")
        for frontend in self.fleet.frontends:
            self.outcome.fallbacks.update(frontend.traffic.transfer_fallbacks)
        try:
            await self.fleet.until(lambda: not self.fleet.at_rest(), 35.0, 0.5)  # at the latest with the lease
        except TimeoutError:
            self.outcome.left = self.fleet.at_rest()
