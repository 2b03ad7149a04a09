"""The fault matrix's column for prefill and decode apart: every fault × either engine × every moment between the two.

In each cell every request gets its whole, right answer; nothing is counted or held at the end. The quick round has a
part of the cells, `scripts/test-faults` has all.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from support.virtual.apart import apart
from support.virtual.apart_scene import DECODES, PREFILLS, ApartOutcome, ApartScene, Moment, Side
from support.virtual.faults import FAULTS, Fault
from support.virtual.loop import VirtualLoop, run_virtual

BACK_S = 90.0
_QUICK = {"kill -9", "SIGSTOP", "connection reset", "500s", "slow loris", "half-open TCP", "restart with empty cache"}
_QUICK_MOMENTS = {
    (Side.PREFILL, Moment.PREFILL),
    (Side.PREFILL, Moment.TRANSFER),
    (Side.DECODE, Moment.TRANSFER),
}


def cells() -> list[Any]:
    """Fault, side, moment, front ends."""
    found = []
    for fault, side, moment, frontends in itertools.product(FAULTS, Side, Moment, (1, 3)):
        quick = frontends == 1 and fault.name in _QUICK and (side, moment) in _QUICK_MOMENTS
        name = f"{fault.name}-{side}-{moment}-{frontends}"
        marks = () if quick else pytest.mark.faults
        found.append(pytest.param(fault, side, moment, frontends, id=name, marks=marks))
    return found


def played(fault: Fault, moment: Moment, side: Side, frontends: int) -> ApartOutcome:
    async def main(loop: VirtualLoop) -> ApartOutcome:
        async with apart(loop, PREFILLS, DECODES, frontends) as fleet:
            return await ApartScene(fleet, fault, moment, side).run()

    return run_virtual(main)


@pytest.mark.parametrize(("fault", "side", "moment", "frontends"), cells())
def test_nothing_is_lost(fault: Fault, side: Side, moment: Moment, frontends: int) -> None:
    outcome = played(fault, moment, side, frontends)
    assert outcome.struck, "the fault hit nobody: the scene proves nothing"
    assert outcome.failures == []
    assert outcome.left == []
    assert outcome.over_after_s <= fault.ends_within_s
    assert outcome.back_after_s is not None, "the engine is never used again"
    assert outcome.back_after_s <= BACK_S
