from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.timing import link_learning
from pointsman.core.timing.link_learning import LinkLearner
from pointsman.core.timing.link_priors import HOPE, LinkPriors, PlacePriors, estimate_of, hoped, shared_level
from pointsman.core.timing.link_times import LinkEstimate
from pointsman.core.timing.links import DEFAULT_LINK, Link

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, MIB, 8 * MIB, 64 * MIB, 512 * MIB)
A_LINK = Link("a", 1.25, 0.2)
"""10 Gb/s."""


def took(link: Link, size_bytes: int, rng: random.Random, under_way: int = 0) -> float:
    return link.transfer_ms(size_bytes * (1 + under_way)) * rng.lognormvariate(0, 0.05)


def of(learner: LinkLearner, source: str = "a", target: str = "b") -> LinkEstimate:
    return learner.times().of(learner.number(source), learner.number(target))


def learner_off(link: Link, floor_off: float, speed_off: float) -> LinkLearner:
    return LinkLearner(LinkPriors(network=Link("prior", link.gb_per_s * speed_off, link.floor_ms * floor_off)))


@pytest.mark.parametrize(
    "link", [A_LINK, Link("slow", 0.00625, 1.0), Link("fast", 40.0, 20.0)], ids=lambda one: one.name
)
@pytest.mark.parametrize(("floor_off", "speed_off"), list(itertools.product((0.1, 1.0, 10.0), repeat=2)))
def test_ten_transfers_of_five_sizes_correct_priors_that_are_wrong_by_ten(
    link: Link, floor_off: float, speed_off: float
) -> None:
    learner, rng = learner_off(link, floor_off, speed_off), random.Random(7)
    for size in rng.sample(SIZES * 2, 10):
        assert learner.observe("a", "b", size, took(link, size, rng))
    for size in SIZES:
        assert of(learner).ms(size) == pytest.approx(link.transfer_ms(size), rel=0.1), size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("off", [0.1, 10.0])
def test_one_size_alone_is_predicted_after_ten_transfers(size: int, off: float) -> None:
    learner, rng = learner_off(A_LINK, off, off), random.Random(3)
    for _ in range(10):
        learner.observe("a", "b", size, took(A_LINK, size, rng))
    assert of(learner).ms(size) == pytest.approx(A_LINK.transfer_ms(size), rel=0.1)


def test_small_transfers_leave_the_bandwidth_alone_and_large_ones_the_floor() -> None:
    small, large, rng = LinkLearner(), LinkLearner(), random.Random(1)
    floor = Link("floor", DEFAULT_LINK.gb_per_s, 5.0)
    slow = Link("slow", 1.0, DEFAULT_LINK.floor_ms)
    for _ in range(10):
        small.observe("a", "b", 4 * KIB, took(floor, 4 * KIB, rng))
        large.observe("a", "b", 512 * MIB, took(slow, 512 * MIB, rng))
    assert of(small).floor_ms == pytest.approx(5.0, rel=0.1)
    assert of(small).bytes_per_ms == pytest.approx((DEFAULT_LINK.bytes_per_ms,) * 4, rel=0.1)
    assert of(large).floor_ms == pytest.approx(DEFAULT_LINK.floor_ms, rel=0.1)
    assert of(large).bytes_per_ms[3] == pytest.approx(slow.bytes_per_ms, rel=0.1)
    # Other classes go along, until something of their own is seen.
    assert of(large).bytes_per_ms[1] < 3 * slow.bytes_per_ms


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("size", [8 * MIB, 64 * MIB])
def test_a_link_that_becomes_another_one_is_noticed_within_ten_transfers(factor: float, size: int) -> None:
    learner, rng = LinkLearner(), random.Random(5)
    for _ in range(200):
        learner.observe("a", "b", size, took(A_LINK, size, rng))
        learner.times()
    changed = Link("changed", A_LINK.gb_per_s * factor, A_LINK.floor_ms)
    for _ in range(10):
        learner.observe("a", "b", size, took(changed, size, rng))
    assert of(learner).ms(size) == pytest.approx(changed.transfer_ms(size), rel=0.15)
    assert of(learner).floor_ms == pytest.approx(A_LINK.floor_ms, rel=9)


def test_a_floor_that_rises_is_noticed_and_the_bandwidth_stays() -> None:
    learner, rng = LinkLearner(), random.Random(5)
    for _ in range(40):
        for size in (16 * KIB, 64 * MIB):
            learner.observe("a", "b", size, took(A_LINK, size, rng))
    changed = Link("changed", A_LINK.gb_per_s, 20.0)
    for _ in range(10):
        for size in (16 * KIB, 64 * MIB):
            learner.observe("a", "b", size, took(changed, size, rng))
    assert of(learner).floor_ms == pytest.approx(20.0, rel=0.15)
    assert of(learner).ms(64 * MIB) == pytest.approx(changed.transfer_ms(64 * MIB), rel=0.15)


@pytest.mark.parametrize("times", [0.001, 1000.0])
def test_outliers_move_nothing(times: float) -> None:
    learner, rng = LinkLearner(), random.Random(2)
    for i in range(60):
        learner.observe("a", "b", 8 * MIB, took(A_LINK, 8 * MIB, rng) * (times if i % 10 == 9 else 1))
    assert of(learner).ms(8 * MIB) == pytest.approx(A_LINK.transfer_ms(8 * MIB), rel=0.1)


def test_others_on_the_link_are_not_taken_for_a_slow_link() -> None:
    learner, rng = LinkLearner(), random.Random(2)
    for i in range(12):
        learner.observe("a", "b", 64 * MIB, took(A_LINK, 64 * MIB, rng, under_way=i % 4), under_way=i % 4)
    assert of(learner).ms(64 * MIB) == pytest.approx(A_LINK.transfer_ms(64 * MIB), rel=0.1)
    assert of(learner).ms(64 * MIB, 3) == pytest.approx(A_LINK.transfer_ms(4 * 64 * MIB), rel=0.1)


def test_directions_are_learned_apart() -> None:
    learner, rng = LinkLearner(), random.Random(2)
    for _ in range(10):
        learner.observe("a", "b", 64 * MIB, took(A_LINK, 64 * MIB, rng))
    assert of(learner, "b", "a") == hoped(estimate_of(DEFAULT_LINK), HOPE)
    assert [(row.source, row.target) for row in learner.rows()] == [("a", "b")]


def test_spread_is_how_far_off_predictions_were() -> None:
    learner, rng = LinkLearner(), random.Random(2)
    assert of(learner).spread == 2.0
    for _ in range(100):
        learner.observe("a", "b", 64 * MIB, A_LINK.transfer_ms(64 * MIB) * rng.lognormvariate(0, 0.3))
        learner.times()
    # P90 of a lognormal with that deviation is e^(1.28 · .3) = 1.47.
    assert 1.3 < of(learner).spread < 1.7


def test_evidence_counts_transfers_and_is_bounded() -> None:
    learner = LinkLearner()
    assert of(learner).seen == 0
    learner.observe("a", "b", MIB, 1.0)
    assert of(learner).seen == 1
    for _ in range(1000):
        learner.observe("a", "b", MIB, 1.0)
    assert 60 < of(learner).seen < 64


@pytest.mark.parametrize(
    ("size", "took_ms", "under_way"),
    [(-1, 1.0, 0), (1, 0.0, 0), (1, -1.0, 0), (1, math.nan, 0), (math.inf, 1.0, 0), (1, math.inf, 0), (1, 1.0, -1)],
)
def test_impossible_figures_teach_nothing(size: float, took_ms: float, under_way: int) -> None:
    learner = LinkLearner()
    assert not learner.observe("a", "b", size, took_ms, under_way)
    assert learner.rows() == ()


def test_times_are_one_object_until_something_changes() -> None:
    learner = LinkLearner()
    learner.place("a", ("a", "r1"))
    before = learner.times()
    learner.place("a", ("a", "r1"))
    assert learner.times() is before
    learner.observe("a", "b", MIB, 1.0)
    assert learner.times() is not before
    assert before.of(0, 1).seen == 0


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [
        (("n1", "r1", "z1"), ("n1", "r1", "z1"), 0),
        (("n1", "r1", "z1"), ("n2", "r1", "z1"), 1),
        (("n1", "r1", "z1"), ("n2", "r2", "z1"), 2),
        (("n1", "r1", "z1"), ("n2", "r2", "z2"), None),
        (("n1", "r1", "z1"), ("n2", "r1", "z2"), None),
        (("n1", "", "z1"), ("n2", "r1", "z1"), 2),
        (("n1",), ("n2", "r1"), None),
        ((), (), None),
    ],
)
def test_places_share_the_nearest_level_that_no_farther_one_speaks_against(
    one: tuple[str, ...], other: tuple[str, ...], level: int | None
) -> None:
    assert shared_level(one, other) == shared_level(other, one) == level


def test_priors_go_by_places_and_a_measurement_beats_them() -> None:
    learner = LinkLearner()
    for node, place in {"a": ("a", "r1", "z"), "b": ("b", "r1", "z"), "c": ("c", "r2", "z"), "d": ()}.items():
        learner.place(node, place)
    assert of(learner, "a", "a").ms(0) == 0.05 / HOPE
    assert of(learner, "a", "b") == learner.prior(("a", "r1", "z"), ("b", "r1", "z"))
    assert of(learner, "a", "b").bytes_per_ms[0] == 100e6 * HOPE
    assert of(learner, "a", "c").bytes_per_ms[0] == 40e6 * HOPE
    assert of(learner, "a", "c").floor_ms == 0.5 / HOPE
    assert of(learner, "a", "d") == learner.times().otherwise == hoped(estimate_of(DEFAULT_LINK), HOPE)
    learner.observe("a", "b", 64 * MIB, 1000.0)
    assert of(learner, "a", "b").ms(64 * MIB) == pytest.approx(1000, rel=0.1)


def test_levels_beyond_the_last_known_one_are_like_it_and_without_any_like_the_network() -> None:
    far = (("n1", "r1", "z1", "region"), ("n2", "r2", "z2", "region"))
    assert PlacePriors(LinkPriors(), dict(enumerate(far))).believed(0, 1).bytes_per_ms[0] == 40e6
    assert PlacePriors(LinkPriors(levels=()), dict(enumerate(far))).believed(0, 1) == estimate_of(DEFAULT_LINK)


def test_a_machine_that_is_forgotten_takes_its_links_along_and_its_number_is_not_given_again() -> None:
    learner = LinkLearner()
    learner.observe("a", "b", MIB, 1.0)
    learner.observe("b", "c", MIB, 1.0)
    learner.forget("a")
    learner.forget("never seen")
    assert [(row.source, row.target) for row in learner.rows()] == [("b", "c")]
    assert learner.number("a") == 3
    assert of(learner, "a", "b").seen == 0
    assert set(learner.times().pairs) == {(1, 2)}


def test_pairs_are_bounded_and_the_one_unheard_of_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_learning, "MOST_PAIRS", 2)
    learner = LinkLearner()
    for source in ("a", "b", "a", "c"):
        learner.observe(source, "x", MIB, 1.0)
    assert [row.source for row in learner.rows()] == ["a", "c"]
    assert len(learner.times().pairs) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), st.floats(1e-6, 1e9), st.integers(0, 20)),
        max_size=60,
    )
)
def test_whatever_is_told_estimates_stay_usable_numbers(told: list[tuple[int, float, int]]) -> None:
    learner = LinkLearner()
    for size, took_ms, under_way in told:
        learner.observe("a", "b", size, took_ms, under_way)
        estimate = of(learner)
        assert 0 < estimate.floor_ms < math.inf
        assert all(0 < speed < math.inf for speed in estimate.bytes_per_ms)
        assert 0 < estimate.spread < math.inf


def recompute_ms(tokens: int) -> float:
    """gpt-oss-120b on H200."""
    return 24.8 + 0.0248 * tokens + 3.08e-7 * tokens * tokens


PULLS: dict[str, tuple[Link, Callable[[int], float]]] = {
    # Of the published pulls: floor, and .00432 ms a token of some 65 kB; then with the floor of another model.
    "as published": (Link("h200", 65_536 / 0.00432 / 1e6, 21.9), recompute_ms),
    "high floor": (Link("high floor", 65_536 / 0.00432 / 1e6, 250.0), recompute_ms),
    "slow link": (Link("slow", 65_536 / 0.03 / 1e6, 21.9), recompute_ms),
}


@pytest.mark.parametrize("case", PULLS)
@pytest.mark.parametrize("off", [0.5, 2.0])
def test_pulls_lose_little_against_an_oracle_though_links_are_thought_wrong_by_two(case: str, off: float) -> None:
    """A link that is thought to be too slow is tried, for it is hoped to be faster."""
    link, recompute = PULLS[case]
    learner, rng = learner_off(link, off, off), random.Random(4)
    chosen_ms = best_ms = 0.0
    for tokens in (rng.choice((512, 1024, 2048, 4096, 8192, 16_384, 32_768, 49_152)) for _ in range(400)):
        size = tokens * 65_536
        pull_ms = took(link, size, rng)
        best_ms += min(pull_ms, recompute(tokens))
        if of(learner).ms(size) < recompute(tokens):
            chosen_ms += pull_ms
            learner.observe("a", "b", size, pull_ms)
        else:
            chosen_ms += recompute(tokens)
    assert chosen_ms <= 1.05 * best_ms


def test_a_link_that_rests_is_hoped_to_be_faster_until_a_transfer_shows_how_fast_it_is() -> None:
    learner, minute = LinkLearner(), 60_000.0
    learner.look(0.0)
    for _ in range(12):
        learner.observe("a", "b", 64 * MIB, 1000.0)
    seen = of(learner).ms(64 * MIB)
    assert seen == pytest.approx(1000, rel=0.05)
    for at in range(1, 10):
        learner.look(at * minute)
    before = learner.times()
    assert of(learner).ms(64 * MIB) == seen
    learner.look(11 * minute)
    assert of(learner).ms(64 * MIB) == pytest.approx(seen / 1.25)
    assert before.of(0, 1).ms(64 * MIB) == seen
    learner.look(21 * minute)
    assert learner.rows()[0].estimate.ms(64 * MIB) == pytest.approx(seen / 1.25**2)
    learner.observe("a", "b", 64 * MIB, 1000.0)
    assert of(learner).ms(64 * MIB) == pytest.approx(1000, rel=0.05)


def test_hope_has_an_end() -> None:
    learner = LinkLearner()
    learner.look(0.0)
    learner.observe("a", "b", MIB, 1.0)
    for day in range(1, 5):
        learner.look(day * 86_400_000.0)
    assert 1 / 16 < of(learner).ms(MIB) < 1 / 14


def test_what_was_told_before_the_first_look_begins_to_rest_with_it() -> None:
    learner = LinkLearner()
    learner.observe("a", "b", MIB, 1.0)
    learner.look(1e12)
    assert of(learner).ms(MIB) == pytest.approx(1.0, rel=0.1)
