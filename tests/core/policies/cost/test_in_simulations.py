"""What the cost policy is for, each in a small simulation."""

from __future__ import annotations

import numpy as np
import pytest

from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, Slowdown, WorkerGroup
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.policy import Policy
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

ENGINE = profile("h100/llama-8b")
BLOCK = 100


def requests(
    count: int, per_s: float, seed: int, *, shared: int = 0, groups: int = 1, own: int = 400, answer: int = 150
) -> Trace:
    """Poisson arrivals; each prompt begins with the `shared` tokens of its group, the rest is its own."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1000 / per_s, count))
    made = []
    for number, at_ms in enumerate(arrivals.tolist()):
        group = int(rng.integers(groups))
        ids = (
            *(group * 1_000 + block for block in range(shared // BLOCK)),
            *(1_000_000 + number * 100 + block for block in range(own // BLOCK)),
        )
        made.append(TraceRequest(at_ms, shared + own, answer, block_ids=ids))
    return Trace("made", tuple(made), BLOCK)


def run(trace: Trace, *groups: WorkerGroup, policy: Policy | None = None, **setup: object) -> Outcome:
    made = Setup(groups=groups, block_tokens=BLOCK, **setup)  # type: ignore[arg-type]
    outcome = simulate(trace, made, policy or Cost(), seed=1)
    assert outcome.done.all()
    return outcome


def shares(outcome: Outcome, workers: int, since_ms: float = 0.0, until_ms: float = np.inf) -> np.ndarray:
    """Requests of each worker, of those dispatched in that time."""
    chosen = outcome.worker[(outcome.dispatched_ms >= since_ms) & (outcome.dispatched_ms < until_ms)]
    return np.bincount(chosen, minlength=workers)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hot_prefix_at_twice_the_capacity_of_one_worker_spreads(seed: int) -> None:
    at_once = run(requests(300, 10_000, seed, shared=6_000), WorkerGroup(profile=ENGINE, count=1), max_num_seqs=64)
    capacity_per_s = 1000 * len(at_once) / (at_once.ended_ms - at_once.started_ms)
    trace = requests(1_000, 2 * capacity_per_s, seed, shared=6_000)
    outcome = run(trace, WorkerGroup(profile=ENGINE, count=4), max_num_seqs=64)
    dealt = shares(outcome, 4)
    assert dealt.max() / dealt.mean() <= 1.5
    assert outcome.cached_tokens.sum() / outcome.prompt_tokens.sum() > 0.9


@pytest.mark.parametrize("groups", [1, 20, 0])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_new_worker_gets_its_share_and_not_everything(seed: int, groups: int) -> None:
    """In its first minute between half and twice as much as if all were alike: one hot prefix, several, none."""
    trace = requests(3_600, 40, seed, shared=2_000 if groups else 0, groups=max(1, groups), own=600)
    joined_ms = 30_000.0
    outcome = run(
        trace, WorkerGroup(profile=ENGINE, count=3), WorkerGroup(profile=ENGINE, count=1, started_ms=joined_ms)
    )
    first_minute = shares(outcome, 4, joined_ms, joined_ms + 60_000)
    fair = first_minute.sum() / 4
    assert 0.5 * fair <= first_minute[3] <= 2 * fair


@pytest.mark.parametrize(("own", "per_s"), [(400, 60), (4_000, 8), (400, 6)])
def test_workers_of_half_the_weight_get_less_and_are_not_left_out(own: int, per_s: float) -> None:
    """A third of the load is theirs, somewhat more while caches fill and where there is hardly any load; at twice the
    price, which weights once were, such workers got nearly nothing then."""
    trace = requests(500, per_s, 7, own=own)
    fleet = WorkerGroup(profile=ENGINE, count=2), WorkerGroup(profile=ENGINE, count=2, weight=0.5)
    for policy in (Cost(), *(PolicyRegistry().get(name) for name in ("kv", "least_loaded", "random"))):
        dealt = shares(run(trace, *fleet, policy=policy), 4)
        assert 0.25 <= dealt[2:].sum() / dealt.sum() <= 0.46, policy.name


@pytest.mark.parametrize("seats", [4, 8])
def test_engines_with_few_seats_are_not_queued_at_for_what_they_have_cached(seats: int) -> None:
    """A prompt of a thousand shared tokens takes a tenth of a second, a seat several: no cache is worth that wait."""
    engine = profile("l40s/llama-8b")
    trace = requests(600, 0.62 * seats, 3, shared=1_200, groups=12)
    by_cost, by_load = (
        run(trace, WorkerGroup(profile=engine, count=3), policy=policy, max_num_seqs=seats)
        for policy in (Cost(), PolicyRegistry().get("least_loaded"))
    )
    assert np.mean(by_cost.ttft_ms) < 1.3 * np.mean(by_load.ttft_ms)


def test_workers_that_are_twice_as_slow_get_less_and_the_latest_answers_come_sooner() -> None:
    trace = requests(3_000, 60, 5, own=1_500)
    fleet = WorkerGroup(profile=ENGINE, count=2), WorkerGroup(profile=ENGINE, count=2, slow=2.0)
    outcome = run(trace, *fleet, learn_times=True)
    dealt = shares(outcome, 4)
    assert dealt[2:].sum() < 0.8 * dealt[:2].sum()
    for name in ("round_robin", "least_loaded", "kv"):
        other = run(trace, *fleet, learn_times=True, policy=PolicyRegistry().get(name))
        assert np.mean(outcome.e2e_ms) < 1.02 * np.mean(other.e2e_ms)
        assert np.percentile(outcome.e2e_ms, 99) < 0.9 * np.percentile(other.e2e_ms, 99)


def test_a_worker_that_turns_slow_gets_less_within_fifty_of_its_requests() -> None:
    trace = requests(6_000, 60, 6, own=1_500)
    turns_ms = 40_000.0
    fleet = WorkerGroup(profile=ENGINE, count=4)
    outcome = run(trace, fleet, learn_times=True, slowdowns=(Slowdown(0, turns_ms, 3.0),))
    before = shares(outcome, 4, 0, turns_ms)
    assert before[0] / before.sum() == pytest.approx(0.25, abs=0.04)
    sent_there = np.sort(outcome.dispatched_ms[(outcome.worker == 0) & (outcome.dispatched_ms >= turns_ms)])
    adapted_ms = float(sent_there[50])
    after = shares(outcome, 4, adapted_ms)
    assert after[0] / after.sum() < 0.16
