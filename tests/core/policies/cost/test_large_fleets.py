"""Of large fleets only some pairs are looked at: held against a look at all of them."""

from __future__ import annotations

import itertools
import random

import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.cost import pairs
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_times import LinkTimes
from support.plan_fleets import decide, fleet, link, times

FLEETS = 60
MACHINES = 12
GB_PER_S, FLOOR_MS = (0.1, 2.5, 12.0, 40.0), (0.0, 1.0, 20.0)


def scene(seed: int) -> tuple[FleetView, FleetTimes, Request]:
    """40 to 69 workers on machines with links of all kinds; some for prompts are idle, those that decode wait."""
    chance = random.Random(seed)
    count = chance.randrange(40, 70)
    roles = "".join(chance.choice("ppddb") for _ in range(count))
    decoding = [chance.choice([0, 0, 1, 4, 20, 40]) for _ in roles]
    backlog, prompt = chance.choice([0, 15_000, 40_000]), chance.choice([500, 4_000, 16_000])
    waiting = [
        chance.choice([0, 1_000, 4_000]) if role == "p" else backlog + chance.choice([0, 2_000, 9_000, 30_000])
        for role in roles
    ]
    cached = chance.choice([(0, 0, 0, prompt // 2, prompt - 100), (0, 0, 0, 100, 300)])
    view = fleet(
        roles,
        running=[some + (tokens > 0) for some, tokens in zip(decoding, waiting, strict=True)],
        waiting_first=[int(tokens > 0) for tokens in waiting],
        prefill_tokens=waiting,
        kv_tokens=[some * 1_500 + tokens for some, tokens in zip(decoding, waiting, strict=True)],
        remaining_tokens=[some * 100 for some in decoding],
        cached_tokens=[chance.choice(cached) for _ in roles],
        exact=[1] * count,
        transfers_in=[chance.choice([0, 0, 1, 3]) for _ in roles],
        transfers_out=[chance.choice([0, 0, 1, 3]) for _ in roles],
        node=[chance.randrange(MACHINES) for _ in roles],
    )
    machines = itertools.product(range(MACHINES), repeat=2)
    links = {both: link(chance.choice(GB_PER_S), chance.choice(FLOOR_MS)) for both in machines}
    return view, times(view, LinkTimes(links, link(5.0))), Request("r", "m", 0.0, prompt)


def test_hardly_any_plan_of_a_large_fleet_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = [scene(seed) for seed in range(FLEETS)]

    def decisions() -> tuple[list[Decision], list[float]]:
        made = [decide(view, timing, request) for view, timing, request in scenes]
        return made, [one.chosen_score for one in made]  # of what is worked out when somebody looks

    _, some = decisions()
    monkeypatch.setattr(pairs, "ALL", 1_000)
    monkeypatch.setattr(pairs, "SOURCES", 1_000)
    best, least = decisions()
    dearer = [one / other - 1 for one, other in zip(some, least, strict=True)]
    assert min(dearer) > -1e-9
    assert sum(more < 1e-9 for more in dearer) >= 0.95 * FLEETS
    assert max(dearer) < 0.05
    apart = sum(isinstance(one.plan, Disaggregate) for one in best)
    pulls = sum(isinstance(one.plan, Aggregate) and one.plan.pull is not None for one in best)
    assert min(apart, pulls, FLEETS - apart - pulls) >= FLEETS // 6, "of each kind of plan there are some"
