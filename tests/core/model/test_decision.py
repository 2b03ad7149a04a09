from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pointsman.core.model.decision import Decision, PlanRows
from pointsman.core.model.plan import Aggregate, Disaggregate, Plan, Pull, Reject
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.model.worker import WorkerId


def made(plan: Aggregate | Reject) -> Decision:
    view = FleetView.of(
        ["a/0", "b/0", "c/0"], exclusion=[0, 0, Exclusion.DRAINING], running=[3, 1, 0], cached_tokens=[8, 0, 99]
    )
    return Decision("r", "p", 5.0, plan, view, "ms", np.array([4.0, 1.5, 0.0]), {"t": np.array([1, 2, 3])})


def test_candidates_are_all_workers_best_first_with_the_reason_of_those_excluded() -> None:
    best, second, excluded = made(Aggregate(WorkerId("b/0"))).candidates()
    assert (best.worker, best.score, best.load, best.terms) == ("b/0", 1.5, 1, {"t": 2.0})
    assert (second.worker, second.cached_tokens, second.excluded) == ("a/0", 8, None)
    assert (excluded.worker, excluded.score, excluded.excluded) == ("c/0", None, "draining")


def test_the_runner_up_lost_by_its_margin_and_is_never_an_excluded_worker() -> None:
    assert made(Aggregate(WorkerId("b/0"))).runner_up() == ("a/0", 2.5)


def test_a_rejection_has_neither_worker_nor_runner_up() -> None:
    decision = made(Reject("nobody"))
    assert decision.worker is None
    assert decision.runner_up() is None
    assert len(decision.candidates()) == 3


def test_every_exclusion_has_words() -> None:
    texts = {reason.text for reason in Exclusion}
    assert len(texts) == len(Exclusion)


A, B = WorkerId("a/0"), WorkerId("b/0")


def planned(chosen: int = -1, plan: Plan = Aggregate(B), **fields: object) -> Decision:  # noqa: B008
    """a computes for b (score 1), b pulls from a (score 2), and one that was excluded."""
    rows = PlanRows(
        prefill=np.array([0, -1, 0]),
        decode=np.array([1, 1, 1]),
        source=np.array([-1, 0, -1]),
        moved_tokens=np.array([100, 8, 100]),
        scores=np.array([1.0, 2.0, np.inf]),
        terms={},
        excluded={2: "would not fit"},
        chosen=chosen,
    )
    return replace(made(Aggregate(B)), plan=plan, plans=replace(rows, **fields))  # type: ignore[arg-type]


def test_a_plan_beside_the_chosen_one_may_be_the_runner_up() -> None:
    apart = planned(0, Disaggregate(A, B))
    assert (apart.chosen_score, apart.prefill_worker, apart.worker) == (1.0, A, B)
    assert apart.runner_up_plan() == (Aggregate(B), 0.5)
    assert apart.runner_up() == (B, 0.5)
    pulled = planned(1, Aggregate(B, Pull(A, 8)))
    assert pulled.runner_up_plan() == (Disaggregate(A, B), -1.0)
    alone = planned(scores=np.array([1.75, 2.0, np.inf]))
    assert alone.chosen_score == 1.5
    assert alone.runner_up_plan() == (Disaggregate(A, B), 0.25)


def test_where_scores_cannot_be_compared_the_runner_up_is_another_worker() -> None:
    apart = planned(0, Disaggregate(A, B), comparable=False)
    assert apart.chosen_score == 1.5
    assert apart.runner_up_plan() == (Aggregate(A), 2.5)


def test_plans_have_numbers() -> None:
    decision = planned()
    assert [decision.plan_of(number) for number in range(2)] == [Disaggregate(A, B), Aggregate(B, Pull(A, 8))]
    with pytest.raises(IndexError, match="no plans"):
        made(Aggregate(B)).plan_of(0)


def test_any_plan_that_was_judged_has_a_score() -> None:
    decision = planned(0, Disaggregate(A, B))
    asked = [Aggregate(A), Aggregate(B), Disaggregate(A, B), Aggregate(B, Pull(A, 8)), Disaggregate(B, A), Reject("no")]
    assert [decision.score_of(plan) for plan in asked] == [4.0, 1.5, 1.0, 2.0, None, None]
    assert planned(comparable=False).score_of(Disaggregate(A, B)) is None
    assert made(Aggregate(B)).score_of(Disaggregate(A, B)) is None
    assert decision.score_of(Aggregate(WorkerId("x/0"))) is None
