"""How long streams take that a fault strikes midway: scenes of the fault matrix, in virtual time, with the defaults.

usage: scripts/bench fault_times
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

from harness import report
from harness.command import carry_out
from harness.subjects import ROOT

sys.path.append(str(ROOT / "tests"))

from support.virtual.faults import FAULTS, Fault
from support.virtual.fleet import fleet_of
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scene import Phase, Scene

PAGE = ROOT / "docs" / "reliability.md"
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    engines: int = 3
    front_ends: int = 1


def ended_after_s(fault: Fault, options: Options) -> list[float]:
    """Of each stream that was at the engine: from the fault to its end."""

    async def main(loop: VirtualLoop) -> list[float]:
        async with fleet_of(loop, options.engines, options.front_ends) as fleet:
            outcome = await Scene(fleet, fault, Phase.MIDWAY).run()
            assert not outcome.failures, outcome.failures
            return outcome.struck_ended_s

    return run_virtual(main)


def run(options: Options) -> Results:
    logging.disable(logging.ERROR)
    return {"seconds": {fault.name: ended_after_s(fault, options) for fault in FAULTS}}


def markdown(results: Results) -> str:
    rows = [[name, f"{max(seconds):.1f} s"] for name, seconds in results["seconds"].items()]
    return report.table(["fault", "mid-stream: the last is whole after"], rows)


def main() -> int:
    return carry_out("fault_times", Options(), lambda: run(Options()), markdown, keep=True, page=PAGE)


if __name__ == "__main__":
    sys.exit(main())
