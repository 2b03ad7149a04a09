"""The simulator itself: a policy against itself with other luck is no different."""

from __future__ import annotations

import random

from pointsman.app.experiments.conduct import conduct
from pointsman.app.experiments.plan import Experiment, Point, entries
from pointsman.app.experiments.slo import Slo
from pointsman.app.experiments.summary import summarize
from pointsman.app.experiments.workload import Recorded
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

EXPERIMENTS = 24


def traffic(seed: int) -> Trace:
    """Forty requests of some people; the fleet is busy, so luck matters."""
    rng = random.Random(seed)
    now, requests = 0.0, []
    for _ in range(40):
        now += rng.expovariate(1 / 60)
        blocks = rng.randrange(4, 40)
        person = rng.randrange(6)
        ids = tuple(1_000 * person + block for block in range(blocks))
        requests.append(TraceRequest(now, 128 * blocks, rng.randrange(5, 40), ids))
    return Trace("traffic", requests, 128)


def test_random_against_random() -> None:
    registry = PolicyRegistry()
    setup = Setup(groups=(WorkerGroup(profile("h100/llama-70b-tp4"), 3),), step_noise=0.03)
    called, apart = 0, 0
    for number in range(EXPERIMENTS):
        policies = entries([registry.get("random"), registry.get("random")])
        plan = Experiment(Recorded(traffic(number)), policies, (Point(setup),), 5, Slo(ttft_ms=500))
        (point,) = summarize(conduct(plan)).points
        called += any(each.significant for each in point.comparisons)
        apart += any(each.difference for each in point.comparisons)
    assert apart == EXPERIMENTS
    assert called <= 0.05 * EXPERIMENTS
