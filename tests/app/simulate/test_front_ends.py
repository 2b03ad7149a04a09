"""Several front ends before one fleet decide nearly as well as one, since they tell each other what they do."""

from __future__ import annotations

import numpy as np
import pytest

from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.app.simulate.simulation import Simulation
from pointsman.core.model.errors import ConfigError
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.generators.arrivals import Poisson
from pointsman.core.workload.generators.chat import Chat, chat
from pointsman.core.workload.generators.distributions import Fixed, Lognormal
from pointsman.core.workload.generators.shared_prefix import Order, SharedPrefix, shared_prefix
from pointsman.core.workload.trace import Trace, TraceRequest

ENGINE = profile("h100/llama-8b")


def turns(seed: int) -> Trace:
    think = Lognormal(8_000, 0.9, 1000, 60_000)
    return chat(Chat(Poisson(4.0), sessions=70, think_ms=think), np.random.default_rng(seed))


def shared(seed: int) -> Trace:
    settings = SharedPrefix(
        Poisson(20.0),
        groups=25,
        system_tokens=Fixed(2000),
        question_tokens=Fixed(400),
        output_tokens=Fixed(100),
        order=Order.DRAWN,
        zipf=1.0,
        requests=350,
    )
    return shared_prefix(settings, np.random.default_rng(seed))


def burst(count: int, seed: int) -> Trace:
    """Requests that have nothing in common, within 100 ms."""
    times = np.sort(np.random.default_rng(seed).uniform(0, 100, count))
    requests = [
        TraceRequest(float(at_ms), 512, 200, block_ids=tuple(range(100 * i + 1, 100 * i + 33)))
        for i, at_ms in enumerate(times)
    ]
    return Trace("burst", tuple(requests), 16)


def run(trace: Trace, policy: str, front_ends: int, lag_ms: float | None = 20.0, **setup: object) -> Outcome:
    fleet = (WorkerGroup(profile=ENGINE, count=8),)
    made = Setup(groups=fleet, front_ends=front_ends, front_end_lag_ms=lag_ms, kv_events=policy != "prefix", **setup)  # type: ignore[arg-type]
    return simulate(trace, made, PolicyRegistry().get(policy), seed=1)


def hit_rate(outcome: Outcome) -> float:
    assert outcome.done.all()
    return float(outcome.cached_tokens.sum() / outcome.prompt_tokens.sum())


@pytest.mark.parametrize("policy", ["prefix", "kv", "cost"])
@pytest.mark.parametrize("workload", [turns, shared])
def test_three_find_as_much_in_caches_as_one(workload, policy: str) -> None:
    trace = workload(1)
    one = hit_rate(run(trace, policy, 1))
    assert hit_rate(run(trace, policy, 3, 100.0)) >= 0.95 * one


def test_that_is_because_they_talk() -> None:
    trace = turns(1)
    assert hit_rate(run(trace, "prefix", 3, None)) < 0.95 * hit_rate(run(trace, "prefix", 1))


@pytest.mark.parametrize("policy", ["least_loaded", "power_of_two", "prefix", "kv", "cost"])
@pytest.mark.parametrize("lag_ms", [20.0, 100.0])
def test_a_burst_is_balanced_though_all_see_the_same(policy: str, lag_ms: float) -> None:
    worst = []
    for seed in range(2):
        requests = np.bincount(run(burst(192, seed), policy, 3, lag_ms).worker, minlength=8)
        worst.append(requests.max() / requests.mean())
    assert max(worst) <= 1.5


def test_requests_end_where_they_began_and_nothing_is_left() -> None:
    made = Setup(groups=(WorkerGroup(profile=ENGINE, count=2),), front_ends=3)
    simulation = Simulation(burst(30, 1), made, PolicyRegistry().get("kv"))
    simulation.run()
    heap = simulation._heap
    while heap._heap[0][0] < heap.now_ms + 20.0 and heap._heap[0][0] < 1e5:
        heap.run_next()
    for front_end in simulation._front_end._front_ends:  # type: ignore[attr-defined]
        snapshot = front_end.ledger.snapshot()
        assert (snapshot.running, snapshot.waiting, snapshot.totals.finished) == (0, 0, 10)
        assert all(set(worker.others) == {0} and worker.sequences == 0 for worker in snapshot.workers)
        assert sorted(snapshot.others.values()) == [0, 0]


def test_bad_settings() -> None:
    for bad in ({"front_ends": 0}, {"front_ends": 2, "front_end_lag_ms": -1.0}):
        with pytest.raises(ConfigError, match=next(reversed(bad))):
            Setup(groups=(WorkerGroup(profile=ENGINE, count=1),), **bad)  # type: ignore[arg-type]
