"""One misfortune after the other, in any order, each to another engine, while requests keep coming: none is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from support.virtual.faults import FAULTS
from support.virtual.fleet import fleet_of
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import wrong

EVERY_S = 0.7
HEALTHY_S = 45.0
"""Between two faults: what the one before still holds up is sent on, and its engine trusted again, before the next."""


@pytest.mark.parametrize("seed", range(6))
def test_faults_come_one_after_the_other(seed: int) -> None:
    async def main(loop: VirtualLoop) -> tuple[list[str], list[str]]:
        rng = random.Random(seed)
        asked = []

        async def ask() -> None:
            while True:
                begin = rng.choice((fleet.chat, fleet.chat, fleet.plain))
                asked.append(begin(max_tokens=rng.randrange(1, 120)))
                await asyncio.sleep(EVERY_S)

        async with fleet_of(loop, 3, 1 + 2 * (seed % 2)) as fleet:
            load = asyncio.create_task(ask())
            for fault in rng.sample(FAULTS, 4):
                victim = rng.choice(fleet.engines)
                if fault.prepare is not None:
                    await fault.prepare(fleet, victim)
                    await asyncio.sleep(2.0)
                await fault.strike(fleet, victim)
                await asyncio.sleep(rng.uniform(0.2, 30.0))
                await fault.lift(fleet, victim)
                await asyncio.sleep(HEALTHY_S)
            load.cancel()
            await asyncio.wait([task for _, task, _ in asked], timeout=120.0)
            truth = await fleet.truth([body for _, _, body in asked])
            failures = [
                f"request {number}: {why}"
                for number, ((answer, _, _), right) in enumerate(zip(asked, truth, strict=True))
                if (why := wrong(answer, right))
            ]
            if fleet.at_rest():
                await fleet.until(lambda: not fleet.at_rest(), 30.0, 0.5)
            return failures, fleet.at_rest()

    failures, left = run_virtual(main)
    assert failures == []
    assert left == []
