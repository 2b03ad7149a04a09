from __future__ import annotations

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate, Reject
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
