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
    seen: re.Pattern[str]
    """What `status` must say of the engine while it lasts."""
    ends_within_s: float
    """After the strike, whatever was there has ended well, although the fault may last."""
    outcomes: tuple[str, str, str]
    """What becomes of requests that are there: before their first token, midway, during a drain."""
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
    """Batches are lost, doubled and out of order; then none comes, and none can be asked for."""
    engine.set_faults(events={"drop": 0.5, "duplicate": 0.2, "reorder": 0.2})
    fleet.loop.call_later(6.0, lambda: engine.set_faults(events={"stop": True}))


RESENT = "sent once more, to another engine"
MOVED = "goes on at another engine after the last token sent"
STAYS = "is answered by the same engine"
FAULTS = [
    Fault(
        "kill -9",
        _kill,
        _start,
        30.0,
        re.compile("refused|closed the connection|cannot connect"),
        15.0,
        (RESENT, MOVED, MOVED),
    ),
    Fault(
        "SIGSTOP",
        _stop,
        _go_on,
        120.0,
        re.compile("not answered within|no token for"),
        25.0,
        (f"{RESENT}, once health has given the engine up", f"{MOVED}, once health has given the engine up", MOVED),
    ),
    Fault("connection reset", _reset, nothing, 5.0, re.compile("reset by peer"), 15.0, (RESENT, MOVED, MOVED)),
    Fault(
        "500s",
        _fail,
        _work,
        40.0,
        re.compile("answered 500|injected fault|error event"),
        15.0,
        (RESENT, f"with an error event: {MOVED}", f"with an error event: {MOVED}"),
        prepare=_will_break,
    ),
    Fault(
        "slow loris",
        _drip,
        _flow,
        120.0,
        re.compile("not answered within|no token for"),
        25.0,
        (f"{RESENT}, once health has given the engine up", f"{MOVED}, once health has given the engine up", MOVED),
    ),
    Fault(
        "half-open TCP",
        _half_open,
        nothing,
        90.0,
        re.compile("timed out|nothing whole came|no token for"),
        45.0,
        (f"{RESENT}, once the kernel's keep-alive or health has noticed", f"{MOVED}, as soon", f"{MOVED}, as soon"),
    ),
    Fault(
        "restart with empty cache",
        _restart,
        nothing,
        5.0,
        re.compile("closed the connection"),
        15.0,
        (RESENT, MOVED, MOVED),
    ),
    Fault(
        "event loss",
        _lose_events,
        _work,
        50.0,
        re.compile("missing|are lost|asked for|replay"),
        15.0,
        (STAYS, STAYS, STAYS),
    ),
    Fault(
        "metric lies",
        _lie,
        _tell_the_truth,
        40.0,
        re.compile("metrics have no usable value"),
        15.0,
        (STAYS, STAYS, STAYS),
    ),
    Fault(
        "DNS change",
        _move,
        nothing,
        30.0,
        re.compile("refused|closed the connection|cannot connect"),
        15.0,
        (RESENT, MOVED, MOVED),
    ),
]


def table() -> str:
    """What docs/reliability.md says of each fault."""
    lines = [
        "| Fault | before the first token: the request | mid-stream: it | while the engine drains: it | over within |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {fault.name} | {' | '.join(text for text in fault.outcomes)} | {fault.ends_within_s:.0f} s |"
        for fault in FAULTS
    ]
    return "\n".join(lines) + "\n"
