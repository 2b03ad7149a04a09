"""Policies that know of one worker, where there are workers for prompts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.policies.stages import NOBODY_FOR_PROMPTS
from pointsman.core.trials.arms import By, Split
from pointsman.core.trials.rollout import Rollout
from support.plan_fleets import decide, fleet, rules

REGISTRY = PolicyRegistry()
ONE_WORKER = [name for name in REGISTRY.names() if name not in ("auto", "cost")]


class FewestKv:
    """As in docs/policies.md: it has never heard of plans."""

    name = "fewest_kv"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        held = view.column(Column.KV_TOKENS)
        row = least_row(held, rows, rng)
        return decision(self.name, request, view, now_ms, row, held, "tokens", {"held": held})


@pytest.mark.parametrize("name", ONE_WORKER)
def test_each_policy_chooses_who_computes_the_prompt_and_who_answers(name: str) -> None:
    made = decide(fleet("ppdd"), policy=REGISTRY.get(name))
    assert made.prefill_worker in ("w0/0", "w1/0")
    assert made.worker in ("w2/0", "w3/0")
    assert made.policy == name


def test_each_stage_is_decided_as_the_policy_decides() -> None:
    view = fleet("ppdd", running=[5, 2, 3, 7], kv_tokens=[100, 900, 800, 300])
    assert decide(view, policy=REGISTRY.get("least_loaded")).plan == Disaggregate(view.workers[1], view.workers[2])
    made = decide(view, policy=FewestKv())
    assert made.plan == Disaggregate(view.workers[0], view.workers[3])
    assert made.view is view


def test_the_ranking_of_the_workers_for_the_prompt_is_kept() -> None:
    view = fleet("ppdd", running=[5, 2, 3, 7], cached_tokens=[0, 0, 1_000, 0])
    made = decide(view, policy=REGISTRY.get("least_loaded"))
    plans = made.plans
    assert plans is not None
    assert not plans.comparable
    assert plans.prefill.tolist() == [0, 1]
    assert plans.scores.tolist() == [5.0, 2.0]
    assert plans.terms["running"].tolist() == [5.0, 2.0]
    assert plans.chosen == 1
    assert plans.moved_tokens.tolist() == [3_000, 3_000]
    assert made.scores.tolist() == [5, 2, 3, 7]
    assert made.runner_up() == ("w3/0", 4.0)


def test_one_worker_computes_all_of_it_where_no_pair_is_left() -> None:
    policy = REGISTRY.get("least_loaded")
    for view in (
        fleet("pd", kv_group=[1, 2]),
        fleet("pd", kv_sides=[2, 2]),
        fleet("pd", rules=rules(most_bytes=1_000)),
    ):
        made = decide(view, policy=policy)
        assert made.plan == Aggregate(view.workers[1])
        assert made.note == NOBODY_FOR_PROMPTS


def test_where_nobody_has_room_they_wait_for_it_at_whoever_answers() -> None:
    policy = REGISTRY.get("least_loaded")
    full = decide(fleet("pdd", running=[0, 9, 2], kv_capacity_tokens=[400_000, 4_000, 4_000]), policy=policy)
    assert (full.plan, full.note) == (Disaggregate(full.view.workers[0], full.view.workers[2]), None)
    one = decide(fleet("pdd", running=[0, 9, 2], kv_capacity_tokens=[400_000, 400_000, 4_000]), policy=policy)
    assert one.plan == Disaggregate(one.view.workers[0], one.view.workers[1])


def test_a_worker_for_prompts_that_is_gone_leaves_the_others_to_do_it() -> None:
    view = fleet("pd", exclusion=[int(Exclusion.UNREACHABLE), 0])
    made = decide(view, policy=REGISTRY.get("least_loaded"))
    assert (made.plan, made.note) == (Aggregate(view.workers[1]), None)


def test_a_worker_that_computes_both_may_keep_its_prompt() -> None:
    view = fleet("pbd", running=[4, 0, 3])
    made = decide(view, policy=REGISTRY.get("least_loaded"))
    assert (made.plan, made.note, made.plans) == (Aggregate(view.workers[1]), None, None)
    apart = decide(replace(view, transfer=rules("always")), policy=REGISTRY.get("least_loaded"))
    assert apart.plan == Disaggregate(view.workers[1], view.workers[2])


def test_off_leaves_workers_for_prompts_out() -> None:
    made = decide(fleet("pd", rules=rules("off")), policy=REGISTRY.get("least_loaded"))
    assert (made.worker, made.prefill_worker, made.note) == ("w1/0", None, None)


def test_without_workers_for_prompts_only_always_takes_things_apart() -> None:
    view = fleet("bb")
    assert decide(view, policy=REGISTRY.get("least_loaded")).prefill_worker is None
    made = decide(replace(view, transfer=rules("always")), policy=REGISTRY.get("least_loaded"))
    assert made.prefill_worker is not None
    assert made.prefill_worker != made.worker


def test_only_workers_for_prompts_answer_nobody() -> None:
    assert decide(fleet("pp"), policy=REGISTRY.get("least_loaded")).worker is None


def test_a_pin_holds_for_who_answers() -> None:
    view = fleet("pdd", exclusion=[int(Exclusion.ROLE), int(Exclusion.PINNED_ELSEWHERE), 0])
    assert decide(view, policy=REGISTRY.get("random")).plan == Disaggregate(view.workers[0], view.workers[2])


def test_both_policies_of_a_rollout_decide_in_stages() -> None:
    base, trial = REGISTRY.get("least_loaded"), FewestKv()
    for share, name in ((0.0, "least_loaded"), (1.0, "fewest_kv")):
        made = decide(fleet("pd"), policy=Rollout(base, trial, Split(trial.name, share, By.REQUEST)))
        assert (made.policy, made.prefill_worker) == (name, "w0/0")
