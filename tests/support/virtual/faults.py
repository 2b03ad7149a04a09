"""Faults of engines: how each strikes and ends, and what a front end has to say of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from support.virtual.engine import VirtualEngine
from support.virtual.fleet import VirtualFleet

Act = Callable[[VirtualFleet, VirtualEngine], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One kind of misfortune of one engine."""

    name: str
    strike: Act
    lift: Act
    lasts_s: float
    """From `strike` to `lift`."""
    seen: re.Pattern[str] | None
    """What `status` must say of the engine while it lasts, or counts; None: nothing need be seen, nothing is wrong."""
    prepare: Act | None = None
    """Before the requests are sent that it is to hit."""


async def nothing(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    """It is over by itself."""


# ---- processes


async def _kill(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.kill()


async def _start(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    await engine.start()


async def _stop(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.stop()


async def _go_on(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.go_on()


async def _restart(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    await engine.restart()


# ---- the way there


async def _reset(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    fleet.network.reset(engine.address)


async def _half_open(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    fleet.network.half_open(engine.address)


async def _drip(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    fleet.network.drip(engine.address, 1.0)


async def _flow(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    fleet.network.drip(engine.address, None)


async def _move(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    """The engine comes up at another address, its name with it; the old address is gone."""
    engine.kill()
    await asyncio.sleep(2.0)
    await engine.move(f"10.0.7.{engine.address.rpartition('.')[2]}")


# ---- what it answers


async def _will_break(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.set_faults(error_after_tokens=60)


async def _fail(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.set_faults(error_status=500)


async def _work(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.set_faults()


async def _lie(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.lie(fleet.loop.time())


async def _tell_the_truth(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.lie(None)


async def _lose_events(fleet: VirtualFleet, engine: VirtualEngine) -> None:
    engine.set_faults(events={"drop": 0.5, "duplicate": 0.2, "reorder": 0.2})


FAULTS = [
    Fault("kill -9", _kill, _start, 30.0, re.compile("refused|closed|cannot connect|lost|unreachable")),
    Fault("SIGSTOP", _stop, _go_on, 120.0, re.compile("not answered|no answer|tokens do not flow|no token")),
    Fault("connection reset", _reset, nothing, 5.0, re.compile("reset")),
    Fault("500s", _fail, _work, 40.0, re.compile("500|error"), prepare=_will_break),
    Fault("slow loris", _drip, _flow, 120.0, re.compile("not answered|no answer|no token|tokens do not flow|slow")),
    Fault("half-open TCP", _half_open, nothing, 90.0, re.compile("not answered|no token|tokens do not flow|late")),
    Fault("restart with empty cache", _restart, nothing, 5.0, re.compile("restart|closed|reset|lost")),
    Fault("event loss", _lose_events, _work, 20.0, re.compile("gap|missing|replay|lost|events")),
    Fault("metric lies", _lie, _tell_the_truth, 40.0, None),
    Fault("DNS change", _move, nothing, 30.0, re.compile("refused|closed|cannot connect|lost|unreachable")),
]
