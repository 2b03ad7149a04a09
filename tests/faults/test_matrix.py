"""The fault matrix in virtual time: every fault × every moment × one front end and three that know each other.

In each cell every request gets its whole, right answer, token by token; status said why; nothing is counted at the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from support.virtual.engine import VirtualEngine
from support.virtual.faults import FAULTS, Fault
from support.virtual.fleet import VirtualFleet, fleet_of
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import DRAIN_GRACE_S, Outcome, Phase, Scene, as_json, says

BACK_S = 90.0
"""Within so long after its fault an engine gets requests again."""


def played(fault: Fault, phase: Phase, frontends: int) -> tuple[Outcome, list[str]]:
    async def main(loop: VirtualLoop) -> tuple[Outcome, list[str]]:
        async with fleet_of(loop, 3, frontends) as fleet:
            outcome = await Scene(fleet, fault, phase).run()
            await fleet.until(lambda: not fleet.at_rest(), 30.0, 0.5) if fleet.at_rest() else None
            return outcome, fleet.at_rest()

    return run_virtual(main)


@pytest.mark.parametrize("frontends", [1, 3], ids=["alone", "3 replicas"])
@pytest.mark.parametrize("phase", list(Phase), ids=str)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_nothing_is_lost(fault: Fault, phase: Phase, frontends: int, caplog: pytest.LogCaptureFixture) -> None:
    outcome, left = played(fault, phase, frontends)
    assert outcome.struck, "the fault hit nobody: the scene proves nothing"
    assert outcome.failures == []
    assert left == []
    assert "nobody expected" not in caplog.text, "a part that goes on after an exception hid one"
    assert says(outcome, fault.seen), f"status never said why: {as_json(outcome)}"
    assert max(outcome.struck_ended_s) <= fault.ends_within_s + (DRAIN_GRACE_S if phase is Phase.DRAIN else 0.0)
    assert outcome.back_after_s is not None, "the engine is never used again"
    assert outcome.back_after_s <= BACK_S


def doubled(fault: Fault) -> Fault:
    """The same at two engines at the same moment."""

    async def strike(fleet: VirtualFleet, engine: VirtualEngine) -> None:
        await asyncio.gather(*(fault.strike(fleet, one) for one in fleet.engines[:2]))

    async def lift(fleet: VirtualFleet, engine: VirtualEngine) -> None:
        await asyncio.gather(*(fault.lift(fleet, one) for one in fleet.engines[:2]))

    return replace(fault, strike=strike, lift=lift)


@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.MIDWAY], ids=str)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_one_engine_of_three_is_enough(fault: Fault, phase: Phase) -> None:
    outcome, left = played(doubled(fault), phase, 1)
    assert outcome.struck
    assert outcome.failures == []
    assert left == []
    assert outcome.back_after_s is not None
