"""A rollout in virtual time: the same objects as live, decided and judged."""

from __future__ import annotations

from pointsman.app.simulate.arms import ArmResults
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.prefix import Prefix
from pointsman.core.policies.random_choice import RandomChoice
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.timing.profiles import profile
from pointsman.core.trials.arms import By, Split
from pointsman.core.trials.comparison import Sums, cached_change, verdict
from pointsman.core.trials.rollout import Rollout
from pointsman.core.trials.verdict import Judgement

SETUP = Setup(groups=(WorkerGroup(profile("h100/llama-8b"), 4),), kv_events=False)


def played(trace, base, trial, share=0.3) -> tuple[Sums, set[str]]:
    rollout = Rollout(base, trial, Split(trial.name, share, By.REQUEST))
    arms, policies = ArmResults(rollout), set()

    def seen(request, decision) -> None:
        policies.add(decision.policy)
        assert decision.policy == rollout.of(rollout.split.place(request).arm).name
        arms(request, decision)

    outcome = simulate(trace, SETUP, rollout, seed=1, on_decision=seen)
    return arms.sums(outcome), policies


def test_each_request_is_decided_and_counted_in_its_arm(shared_prompts) -> None:
    trace = shared_prompts(400)
    sums, policies = played(trace, RoundRobin(), RandomChoice())
    assert policies == {"round_robin", "random"}
    assert sums.base.requests + sums.trial.requests == 400
    assert 80 < sums.trial.requests < 160
    assert verdict(sums, 0.05).judgement in (Judgement.UNKNOWN, Judgement.NO_WORSE)


def test_a_policy_that_loses_the_cache_is_worse_and_the_other_way_round_better(shared_prompts) -> None:
    trace = shared_prompts(1500, every_ms=8.0, groups=60, shared_blocks=200)
    sums, _ = played(trace, Prefix(), RandomChoice())
    assert verdict(sums, 0.05).judgement is Judgement.WORSE
    points = cached_change(sums)
    assert points is not None
    assert points.high < 0
    sums, _ = played(trace, RandomChoice(), Prefix(), share=0.5)
    assert verdict(sums, 0.15).judgement is Judgement.BETTER
