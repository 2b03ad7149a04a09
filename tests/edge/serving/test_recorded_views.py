"""A recorded decision can be made again offline: same request, view, times and chance, same plan and same scores."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pointsman.core.ledger.events import MetricsRead
from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.policy import Timing
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.route_key import RouteKey
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.policies import Chosen
from support.scripted_fleet import Fleet

STORY = "Once there was a router who knew where everybody had been before. " * 12
STEP_TIMES = {"h100/llama-8b": profile("h100/llama-8b").step}
SEED = 5


@dataclass(frozen=True)
class Recorded:
    """All that a policy was given, as it was then, and what it said."""

    request: Request
    view: FleetView
    timing: Timing
    now_ms: float
    decision: Decision
    table: np.ndarray


def record(frontend: Frontend) -> list[Recorded]:
    """Everything that is decided from now on."""
    found: list[Recorded] = []
    decide = frontend.policy.decide

    def recording(request: Request, view: FleetView, timing: Timing, now_ms: float, chance: Any) -> Chosen:
        table = view.table.copy()
        chosen = decide(request, view, timing, now_ms, chance)
        found.append(Recorded(request, view, timing, now_ms, chosen.decision, table))
        return chosen

    frontend.policy.decide = recording  # type: ignore[method-assign]
    return found


async def traffic(fleet: Fleet, count: int = 24) -> None:
    """Conversations side by side, some of them over again, while the engines' load is read."""
    rng = random.Random(7)

    async def one(number: int) -> None:
        person = rng.randrange(5)
        said = [{"role": "user", "content": f"{person} {part}: {STORY}"} for part in range(rng.randint(1, 4))]
        await fleet.chat([(b"x-session", b"person %d" % person)], messages=said)

    for wave in range(0, count, 6):
        for number, name in enumerate("abc"):
            event = MetricsRead(f"{name}/0", fleet.frontend._clock(), number + wave % 2, number, 0.1 * number, 9_000)
            fleet.frontend.emit(event)  # type: ignore[arg-type]
        await asyncio.gather(*(one(number) for number in range(wave, wave + 6)))


@pytest.mark.parametrize("policy", PolicyRegistry().names())
async def test_views_of_live_traffic_decide_the_same_again(fleet: Fleet, policy: str) -> None:
    for name in "abc":
        await fleet.engine(name)
    sources = tuple(
        WorkerSource(
            name=engine.name,
            url=f"http://127.0.0.1:{engine.port}",
            kind="openai",
            models=engine.models,
            profile="h100/llama-8b",
        )
        for engine in fleet.engines
    )
    settings = {"policy": policy, "route_key": RouteKey.parse("header:x-session"), "step_priors": STEP_TIMES}
    frontend = await fleet.open(sources=sources, heartbeat_s=60.0, seed=SEED, **settings)
    recorded = record(frontend)
    await traffic(fleet)
    assert len(recorded) == 24
    assert {len(one.view) for one in recorded} == {3}
    assert set(recorded[-1].timing) == {"a/0", "b/0", "c/0"}
    again = PolicyRegistry().get(policy)
    for one in recorded:
        assert (one.view.table == one.table).all()  # nobody wrote to it after
        rng = decision_chance(SEED, one.request.id)
        decision = again.decide(one.request, one.view, one.timing, one.now_ms, rng)
        assert decision.plan == one.decision.plan
        assert (decision.scores == one.decision.scores).all()
        assert decision.runner_up() == one.decision.runner_up()
        assert decision.candidates() == one.decision.candidates()
