from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.outlook import Outlook
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.policies.cost.cost import NOTHING_KNOWN, Cost
from pointsman.core.policies.cost.eviction import MOST_REUSE, recomputations
from pointsman.core.policies.cost.placement import uses
from pointsman.core.policies.cost.promises import miss_chance
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.timing.worker_times import WorkerTimes

STEP = StepCoefficients(10.0, 0.05, 0.06, 0.05)
REQUEST = Request("r", "m", 0.0, 4_000)


def times(*factors: float, **of_worker: tuple[float, float]) -> FleetTimes:
    return FleetTimes(
        {f"w{n}/0": WorkerTimes(STEP.scaled(factor), 5.0, **of_worker) for n, factor in enumerate(factors)}
    )


def view(workers: int, outlook: Outlook | None = None, **columns: list[int]) -> FleetView:
    made = FleetView.of([f"w{n}/0" for n in range(workers)], **columns)
    return made if outlook is None else replace(made, outlook=outlook)


def decide(fleet: FleetView, request: Request = REQUEST, timing: FleetTimes | None = None, now_ms: float = 0.0):
    timing = times(*[1.0] * len(fleet)) if timing is None else timing
    return Cost().decide(request, fleet, timing, now_ms, random.Random(0))


def loaded(*running: int, tokens: int = 4_000) -> dict[str, list[int]]:
    """Columns of workers on which so many requests decode."""
    return {
        "running": list(running),
        "kv_tokens": [n * tokens for n in running],
        "remaining_tokens": [n * 128 for n in running],
        "kv_capacity_tokens": [300_000] * len(running),
        "held_tokens": [250_000] * len(running),
    }


NUMBERS = st.integers(0, 60)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_terms_add_up_to_the_score_and_the_least_of_those_that_may_wins(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    column = st.lists(NUMBERS, min_size=n, max_size=n)
    fleet = view(
        n,
        Outlook(
            data.draw(st.floats(1, 5_000)), reuse=data.draw(st.floats(0, 1)), evictions_seen=1e6, arrivals_per_s=3.0
        ),
        **loaded(*data.draw(column)),
        exclusion=data.draw(st.lists(st.sampled_from([0, 0, int(Exclusion.DRAINING)]), min_size=n, max_size=n)),
        foreign=data.draw(column),
        waiting_first=data.draw(column),
        cached_tokens=[64 * value for value in data.draw(column)],
        offloaded_tokens=[1 * value for value in data.draw(column)],
        weight_permille=data.draw(st.lists(st.sampled_from([1000, 2000, 500]), min_size=n, max_size=n)),
        adapter_missing=data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)),
        slo_decoding=data.draw(column),
        slo_tpot_us=[40_000 * value for value in data.draw(column)],
        max_sequences=data.draw(st.lists(st.sampled_from([0, 0, 1, 30]), min_size=n, max_size=n)),
    )
    request = replace(REQUEST, slo=data.draw(st.none() | st.just(Slo(500.0, 30.0))))
    made = decide(fleet, request, times(*[data.draw(st.sampled_from([1.0, 2.0])) for _ in range(n)]))
    if made.worker is None:
        assert not len(fleet.eligible_rows())
        return
    assert made.unit == "ms"
    assert np.allclose(made.scores, np.sum(list(made.terms.values()), axis=0))
    assert np.isfinite(made.scores).all()
    rows = fleet.eligible_rows()
    assert made.scores[made.chosen_row] == made.scores[rows].min()


def test_identical_views_and_chance_decide_the_same() -> None:
    fleet = view(4, **loaded(3, 3, 3, 3))
    assert {decide(fleet).worker for _ in range(10)} == {decide(fleet).worker}
    others = {Cost().decide(REQUEST, fleet, times(1, 1, 1, 1), 0.0, random.Random(n)).worker for n in range(40)}
    assert len(others) == 4


def test_an_answer_counts_for_as_long_as_it_is_expected_to_be() -> None:
    """For a short answer the cache wins, for a long one the worker with fewer beside it."""
    columns = loaded(9, 0) | {"cached_tokens": [3_990, 0]}
    learned = {"reuse": 0.0, "evictions_seen": 1e9}
    assert decide(view(2, Outlook(4.0, **learned), **columns)).worker == "w0/0"
    assert decide(view(2, Outlook(2_000.0, **learned), **columns)).worker == "w1/0"


def test_room_costs_more_the_more_of_what_is_lost_is_needed_again() -> None:
    never = view(1, Outlook(reuse=0.0, evictions_seen=1e12))
    often = view(1, Outlook(reuse=0.9, evictions_seen=1e12))
    assert recomputations(never) == pytest.approx(0.0, abs=1e-3)
    assert recomputations(often) == pytest.approx(9.0, rel=1e-3)
    nothing_seen = view(1, Outlook())
    assert recomputations(nothing_seen) == pytest.approx(MOST_REUSE / (1 - MOST_REUSE))


def test_an_emptier_cache_gives_room_for_less() -> None:
    columns = loaded(0, 0) | {"held_tokens": [250_000, 25_000]}
    terms = decide(view(2, **columns)).terms
    assert terms["eviction_ms"][1] == pytest.approx(terms["eviction_ms"][0] * (1 - (137.5 - 25) / 300))


class TestPlacement:
    """Of content that nobody holds."""

    columns = loaded(8, 8, 8) | {"held_tokens": [210_000, 240_000, 270_000]}
    often = Outlook(200.0, reuse=0.5, evictions_seen=1e12, found_tokens=9e11, computed_tokens=1e11)

    def test_costs_more_the_fuller_the_cache_and_the_more_often_it_comes_back(self) -> None:
        made = decide(view(3, self.often, **self.columns))
        assert made.worker == "w0/0"
        beside_ms = 200 * (0.05 + 0.00006 * 4_100)
        full = 9 * 2 * 8 * beside_ms * np.array([0.0, 0.1, 0.2]) / 0.8
        assert made.terms["placement_ms"] == pytest.approx(np.minimum(full, 3 * 4_000 * 0.05))
        seldom = replace(self.often, found_tokens=1e10)
        assert decide(view(3, seldom, **self.columns)).terms["placement_ms"] == pytest.approx(full / 90, rel=1e-3)

    def test_never_more_than_to_move_it_later(self) -> None:
        crowded = loaded(300, 300, 300) | {"held_tokens": [0, 240_000, 270_000]}
        terms = decide(view(3, self.often, **crowded)).terms
        assert terms["placement_ms"].tolist() == [0.0, pytest.approx(600.0), pytest.approx(600.0)]

    def test_only_counts_what_nobody_holds(self) -> None:
        all_new = decide(view(3, self.often, **self.columns)).terms["placement_ms"]
        held = self.columns | {"cached_tokens": [0, 3_000, 0]}
        assert decide(view(3, self.often, **held)).terms["placement_ms"] == pytest.approx(all_new / 4)
        excluded = held | {"exclusion": [0, int(Exclusion.DRAINING), 0]}
        assert decide(view(3, self.often, **excluded)).terms["placement_ms"][0] == 0.0

    def test_caches_that_are_equally_full_or_unknown_make_no_difference(self) -> None:
        assert "placement_ms" not in decide(view(3, self.often, **loaded(8, 8, 8))).terms
        unknown = {name: values for name, values in self.columns.items() if name != "kv_capacity_tokens"}
        assert "placement_ms" not in decide(view(3, self.often, **unknown)).terms

    def test_before_anything_was_seen_content_is_thought_to_come_back(self) -> None:
        assert uses(view(1)) == pytest.approx(recomputations(view(1)))
        assert uses(view(1, Outlook(computed_tokens=1e12))) == pytest.approx(0.0, abs=1e-3)


def test_a_slower_worker_costs_more_and_unknown_ones_are_like_the_others() -> None:
    assert decide(view(2, **loaded(0, 0)), timing=times(2.0, 1.0)).worker == "w1/0"
    known = FleetTimes({"w0/0": WorkerTimes(STEP.scaled(3.0))})
    made = decide(view(2, **loaded(0, 0)), timing=known)
    assert made.scores[0] == pytest.approx(made.scores[1])
    assert made.note is None
    assert decide(view(2), timing=FleetTimes({})).note == NOTHING_KNOWN


@pytest.mark.parametrize(
    ("running", "chosen"), [((2, 5), "w1/0"), ((2, 9), "w0/0"), ((0, 0), "w1/0"), ((0, 3), "w0/0")]
)
def test_a_worker_with_three_times_the_weight_is_to_have_three_times_the_load(
    running: tuple[int, int], chosen: str
) -> None:
    made = decide(view(2, **loaded(*running), weight_permille=[1000, 3000]))
    assert made.worker == chosen
    assert made.terms["weight_ms"][1] == 0.0  # the heaviest one is judged as if there were no weights
    assert made.terms["weight_ms"][0] > 0.0


def test_weights_are_relative_and_those_of_workers_that_may_not_be_chosen_count_for_nobody() -> None:
    heavy, light = (decide(view(2, **loaded(2, 5), weight_permille=w)) for w in ([1000, 3000], [500, 1500]))
    assert (heavy.scores == light.scores).all()
    alone = decide(view(2, **loaded(2, 5), weight_permille=[1000, 3000], exclusion=[0, int(Exclusion.DRAINING)]))
    assert alone.terms["weight_ms"].tolist() == [0.0, 0.0]
    assert "weight_ms" not in decide(view(2, **loaded(2, 5), weight_permille=[3000, 3000])).terms


def test_an_adapter_that_has_to_be_loaded_costs_its_learned_time() -> None:
    made = decide(view(2, Outlook(adapter_load_ms=80.0), **loaded(0, 0), adapter_missing=[1, 0]))
    assert made.worker == "w1/0"
    assert made.terms["adapter_ms"].tolist() == [80.0, 0.0]
    assert "adapter_ms" not in decide(view(2, **loaded(0, 0))).terms


class TestSeats:
    """Of workers that compute so many sequences at once."""

    def test_with_all_of_them_taken_it_waits_until_somebody_gets_up(self) -> None:
        columns = loaded(4, 4, 4)
        made = decide(view(3, **columns, max_sequences=[4, 5, 0])).terms["ttft_ms"]
        free, unknown = made[1:]
        assert free == unknown == decide(view(1, **loaded(4))).terms["ttft_ms"][0]
        step_ms = 10 + 0.05 * 3 + 0.00006 * 3 * 4_000
        beside_three = decide(view(1, **loaded(3))).terms["ttft_ms"][0]
        assert made[0] == pytest.approx(beside_three + 128 / 4 * step_ms)

    def test_the_more_are_before_it_and_the_longer_they_stay_the_longer(self) -> None:
        columns = loaded(4, 5, 5, 5) | {"foreign": [0, 0, 1, 0], "remaining_tokens": [512, 640, 640, 6_400]}
        beside_three = decide(view(1, **loaded(3))).terms["ttft_ms"][0]
        waits = decide(view(4, **columns, max_sequences=[4] * 4)).terms["ttft_ms"] - beside_three
        assert waits.tolist() == sorted(waits.tolist())
        assert waits[1] == pytest.approx(2 * waits[0], rel=0.01)

    def test_an_answer_goes_on_beside_those_who_sit_not_those_who_wait(self) -> None:
        made = decide(view(2, **loaded(4, 40), max_sequences=[4, 4])).terms
        answers = made["completion_ms"] - made["ttft_ms"]
        assert answers[1] == pytest.approx(answers[0])

    def test_a_worker_whose_seats_are_taken_loses_who_it_has_cached(self) -> None:
        columns = loaded(4, 4) | {"cached_tokens": [3_900, 0]}
        learned = Outlook(64.0, reuse=0.0, evictions_seen=1e12)
        assert decide(view(2, learned, **columns)).worker == "w0/0"
        assert decide(view(2, learned, **columns, max_sequences=[4, 8])).worker == "w1/0"

    def test_a_request_for_more_answers_than_there_are_seats_has_a_finite_score(self) -> None:
        request = replace(REQUEST, sequences=6)
        assert np.isfinite(decide(view(2, **loaded(0, 9), max_sequences=[4, 1]), request).scores).all()


class TestPromises:
    def test_chances_of_a_lognormal(self) -> None:
        one = np.ones(1)
        chance = miss_chance(100 * one, 100.0, one, 1.5 * one)
        assert chance[0] == pytest.approx(0.5)
        assert miss_chance(100 * one, 150.0, one, 1.5 * one)[0] == pytest.approx(0.1, abs=0.012)
        assert miss_chance(100 * one, -5.0, one, 1.5 * one)[0] == pytest.approx(1.0)
        assert miss_chance(100 * one, 1e9, one, one)[0] == pytest.approx(0.0)

    def test_a_promise_that_only_the_idle_worker_keeps_takes_the_request_there(self) -> None:
        columns = loaded(10, 12) | {"cached_tokens": [0, 3_900]}
        learned = Outlook(64.0, reuse=0.0, evictions_seen=1e12)
        plain = decide(view(2, learned, **columns))
        assert plain.worker == "w1/0"
        assert "slo_ms" not in plain.terms
        queue = columns | {"prefill_tokens": [0, 2_000], "waiting_first": [0, 1]}
        made = decide(view(2, learned, **queue), replace(REQUEST, slo=Slo(tpot_ms=13.1)))
        assert made.terms["slo_ms"][1] > made.terms["slo_ms"][0]

    def test_what_is_late_already_is_missed_anywhere(self) -> None:
        request = replace(REQUEST, slo=Slo(ttft_ms=100.0))
        terms = decide(view(2, **loaded(0, 5)), request, now_ms=1_000.0).terms
        assert terms["slo_ms"] == pytest.approx(terms["completion_ms"])

    def test_those_that_it_would_slow_count(self) -> None:
        """Two that decode on the edge of what they were promised, beside two that have time."""
        columns = loaded(2, 2) | {"slo_decoding": [2, 2], "slo_tpot_us": [2 * 11_000, 2 * 90_000]}
        made = decide(view(2, **columns))
        assert made.worker == "w1/0"
        assert made.terms["slo_ms"][0] > 100 * max(made.terms["slo_ms"][1], 1e-6)


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 300), st.integers(0, 300), st.integers(0, 6_000), st.integers(0, 3_000), st.floats(0.5, 4)
        ),
        min_size=1,
        max_size=5,
    ),
    prompt_tokens=st.integers(1, 3_000),
)
def test_what_fits_into_one_step_is_predicted_as_what_does_not(
    rows: list[tuple[int, int, int, int, float]], prompt_tokens: int
) -> None:
    """Beside a worker with a long queue all are computed the long way; the others' terms stay what they are."""
    running, waiting, prefill, cached, factors = (list(column) for column in zip(*rows, strict=True))
    request = replace(REQUEST, prompt_tokens=prompt_tokens)

    def first_tokens(more: int) -> list[float]:
        fleet = view(
            len(rows) + more,
            RUNNING=running + more * [1],
            WAITING_FIRST=waiting + more * [1],
            PREFILL_TOKENS=prefill + more * [1_000_000],
            CACHED_TOKENS=[min(each, prompt_tokens) for each in cached] + more * [0],
        )
        decision = decide(fleet, request, times(*factors, *(more * [1.0])))
        return np.asarray(decision.terms["ttft_ms"])[: len(rows)].tolist()

    assert first_tokens(0) == first_tokens(1)
