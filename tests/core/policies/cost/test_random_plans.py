"""Plans that move KV in random and in large fleets: none that is better is passed over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.outlook import Outlook
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.transfer import TransferRules
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost import pairs as cost_pairs
from pointsman.core.policies.cost import plans as cost_plans
from pointsman.core.policies.cost.pairs import Chances
from pointsman.core.policies.pairs import passing
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_times import LinkEstimate, LinkTimes
from pointsman.core.timing.worker_times import WorkerTimes
from support.plan_fleets import REQUEST, STEP, decide, fleet, link, rules, times

SMALL = st.integers(0, 40)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[FleetView, FleetTimes, Request]:
    roles = draw(st.text("pdb", min_size=1, max_size=6))
    count = len(roles)

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    running = column(SMALL)
    states = [draw(st.sampled_from([0, 0, 0, 4, 8, 10])) or (6 if role == "p" else 0) for role in roles]
    view = fleet(
        roles,
        rules=TransferRules(
            draw(st.sampled_from([rules("auto").mode, rules("always").mode])), draw(st.sampled_from([0, 200_000_000]))
        ),
        outlook=Outlook(draw(st.floats(1, 2_000)), reuse=draw(st.floats(0, 1)), evictions_seen=1e6, arrivals_per_s=4.0),
        exclusion=states,
        running=running,
        waiting_first=column(SMALL),
        kv_tokens=[3_000 * value for value in running],
        remaining_tokens=[100 * value for value in running],
        prefill_tokens=[500 * value for value in column(SMALL)],
        kv_capacity_tokens=column(st.sampled_from([0, 60_000, 400_000])),
        held_tokens=column(st.sampled_from([0, 60_000, 400_000])),
        kv_used_tokens=column(st.sampled_from([0, 50_000])),
        cached_tokens=[100 * value for value in column(SMALL)],
        exact=column(st.integers(0, 1)),
        kv_group=column(st.integers(0, 2)),
        kv_sides=column(st.sampled_from([1, 2, 3, 7, 7])),
        kv_token_bytes=column(st.sampled_from([0, 70_000])),
        node=column(st.integers(-1, 3)),
        transfers_out=column(st.integers(0, 3)),
        transfers_in=column(st.integers(0, 3)),
        max_sequences=column(st.sampled_from([0, 0, 0, 20])),
        weight_permille=column(st.sampled_from([1000, 1000, 2000])),
    )
    speeds = st.floats(0.01, 100)
    links = LinkTimes({(0, 1): link(draw(speeds)), (2, 0): link(draw(speeds), 50.0)}, LinkEstimate())
    request = replace(
        REQUEST, prompt_tokens=draw(st.integers(4_000, 40_000)), slo=draw(st.none() | st.just(Slo(500.0, 30.0)))
    )
    known = {
        worker: WorkerTimes(STEP.scaled(draw(st.sampled_from([0.5, 1.0]))), 3.0, (1.0, 1.3), (0.9, 1.5))
        for worker in view.workers
    }
    return view, FleetTimes(known, links=links), request


def test_no_plan_is_passed_over_that_is_better() -> None:
    rng = np.random.default_rng(11)
    moved = 0
    for _ in range(600):
        count = int(rng.integers(2, 7))
        running = rng.integers(0, 30, count) if rng.random() < 0.5 else np.full(count, rng.integers(0, 30))
        capacity = rng.choice([60_000, 400_000], count)
        view = fleet(
            "".join(rng.choice(list("pdb"), count)),
            outlook=Outlook(
                float(rng.choice([2.0, 100.0, 1_000.0])),
                reuse=float(rng.choice([0.0, 0.5, 0.9])),
                evictions_seen=1e9,
                arrivals_per_s=float(rng.choice([0.0, 4.0, 100.0])),
                found_tokens=1e6,
            ),
            running=running,
            waiting_first=running // rng.choice([1, 2, 50], count),
            kv_tokens=1_000 * running,
            remaining_tokens=100 * running,
            prefill_tokens=rng.integers(0, 3, count) * rng.choice([0, 500, 9_000]),
            kv_capacity_tokens=capacity,
            # Some say that they hold more than fits.
            held_tokens=rng.choice([0, 30_000, 60_000] if rng.random() < 0.5 else [0, 900_000], count),
            cached_tokens=rng.choice([0, 0, 1_600, 3_984], count),
            exact=np.ones(count, dtype=np.int64),
        )
        timing = times(
            view,
            link(float(rng.choice([1.0, 5.0, 20.0, 1e6]))),
            *[STEP.scaled(f) for f in rng.choice([1.0, 1.5], count)],
        )
        request = replace(REQUEST, prompt_tokens=int(rng.choice([4_000, 5_000, 20_000])))
        made = decide(view, timing, request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cost_plans, "chances", lambda *_: Chances(apart=True, pulls=True, sides=None))
            compared = decide(view, timing, request)
        assert (made.plan, made.chosen_score) == (compared.plan, compared.chosen_score)
        moved += made.plans is not None and made.plans.chosen >= 0
    assert 100 < moved < 500


@given(scene=scenes())
@settings(max_examples=150, deadline=None)
def test_plans_are_possible_and_their_terms_add_up(scene: tuple[FleetView, FleetTimes, Request]) -> None:
    """The contract refuses a pair that can't, a source that is not exact, and workers that may not."""
    view, timing, request = scene
    made = decide(view, timing, request)
    plans = made.plans
    if plans is None or not len(plans.scores):
        return
    sums = np.sum(list(plans.terms.values()), axis=0)
    open_rows = np.isfinite(plans.scores)
    assert np.allclose(sums[open_rows], plans.scores[open_rows])
    assert sorted(plans.excluded) == (~open_rows).nonzero()[0].tolist()
    groups, sides = view.column(Column.KV_GROUP), view.column(Column.KV_SIDES)
    for prefill, decode, source in zip(plans.prefill, plans.decode, plans.source, strict=True):
        gives = max(prefill, source)
        assert min(prefill, source) == -1
        assert groups[gives] == groups[decode] != 0
        assert gives != decode
        assert sides[gives] & 1
        assert sides[decode] & 2
    best = min([float(made.scores[row]) for row in view.eligible_rows()])
    assert made.chosen_score is not None
    if view.transfer.mode.value == "auto":
        assert made.chosen_score == pytest.approx(min(best, float(plans.scores.min())))


def test_of_a_large_fleet_the_pairs_that_are_looked_at_are_as_good_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    same = lost = 0
    rounds = 150
    for _ in range(rounds):
        count = int(rng.integers(40, 70))
        roles = "".join(rng.choice(list("pdb"), count))
        running = rng.integers(0, 40, count)
        view = fleet(
            roles,
            outlook=Outlook(200.0, reuse=0.3, evictions_seen=1e7, arrivals_per_s=20.0, found_tokens=1e6),
            running=running,
            kv_tokens=running * 3_000,
            remaining_tokens=running * 100,
            prefill_tokens=rng.integers(0, 30_000, count),
            held_tokens=rng.integers(0, 400_000, count),
            cached_tokens=16 * rng.integers(0, 240, count),
            exact=rng.integers(0, 2, count),
            node=np.arange(count) // 4,
            transfers_out=rng.integers(0, 3, count),
        )
        near = {(node, node): link(400.0) for node in range(count)}
        timing = times(view, LinkTimes(near, link(float(rng.choice([1.0, 10.0, 40.0])))))
        short = decide(view, timing).chosen_score
        monkeypatch.setattr(cost_pairs, "ALL", 1_000)
        every = decide(view, timing).chosen_score
        monkeypatch.undo()
        assert short is not None
        assert every is not None
        same += short <= every * (1 + 1e-9)
        lost = max(lost, short / every - 1)
    assert same >= 0.99 * rounds
    assert lost <= 0.01


def test_what_is_kept_of_a_large_fleet_grows_with_its_workers_not_with_their_pairs() -> None:
    """It is kept for each set of roles that there was, as workers come, go and change."""
    passes = passing(fleet("pdb" * 300))
    assert passes.any_apart
    assert sum(value.nbytes for value in passes if isinstance(value, np.ndarray)) < 200 * 900
    rows = np.array([0, 1, 2])
    infinite = np.inf
    apart = [[infinite, 0, 0], [infinite, infinite, infinite], [infinite, 0, infinite]]
    assert passes.kept_from(rows, rows, apart=True).tolist() == apart
    assert passing(fleet("pdb")).kept_from(None, None, apart=True).tolist() == apart
    for kind in (True, False):
        every = passes.kept_from(None, None, apart=kind)
        assert np.array_equal(passes.kept_from(rows, rows, apart=kind), every[np.ix_(rows, rows)])
        assert np.array_equal(passing(fleet("pdb")).kept_from(rows, rows, apart=kind), every[np.ix_(rows, rows)])
