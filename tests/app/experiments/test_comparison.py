"""Policies compared: no difference where there is none, and the difference where there is one."""

from __future__ import annotations

import math
import random

import pytest

from pointsman.app.experiments.comparison import BySeed, Comparison, compare
from pointsman.app.experiments.measures import MEASURES
from pointsman.app.experiments.verdict import WITH_SLO, leader, sentences, verdict_keys

QUIET = dict.fromkeys([*MEASURES, "saturated"], 0.0)


def runs(rng: random.Random, lucks: list[float], factor: float = 1.0, spread: float = 0.1) -> BySeed:
    """Metrics of a policy under seeds with those lucks; heavy tails at P99, as P99s have them."""
    return {
        seed: QUIET
        | {
            "ttft_p50_ms": 100 * luck * factor * rng.lognormvariate(0, spread),
            "ttft_p99_ms": 900 * luck * factor * rng.lognormvariate(0, spread) * rng.paretovariate(4),
            "tpot_mean_ms": 20 * rng.lognormvariate(0, spread / 4),
            "output_tokens_s": 5_000 / factor * rng.lognormvariate(0, spread / 4),
            "goodput_share": min(1.0, rng.betavariate(50, 2)),
        }
        for seed, luck in enumerate(lucks)
    }


@pytest.mark.parametrize("policies", [2, 3])
@pytest.mark.parametrize("seeds", [3, 5])
def test_policies_that_differ_by_chance_alone_are_alike(policies: int, seeds: int) -> None:
    """In at least 95 % of experiments not one of all comparisons is called a difference."""
    rng = random.Random(7)
    wrong, repetitions = 0, 300
    for _ in range(repetitions):
        lucks = [rng.lognormvariate(0, 0.5) for _ in range(seeds)]
        results = {f"p{number}": runs(rng, lucks) for number in range(policies)}
        comparisons = compare(results, WITH_SLO)
        assert len(comparisons) == policies * (policies - 1) / 2 * len(WITH_SLO)
        wrong += any(each.significant for each in comparisons)
    assert wrong <= 0.05 * repetitions


def test_a_real_difference_is_found_although_seeds_differ_more() -> None:
    rng = random.Random(3)
    found = 0
    for _ in range(50):
        lucks = [rng.lognormvariate(0, 1.0) for _ in range(5)]
        comparisons = compare({"a": runs(rng, lucks, 0.6, 0.03), "b": runs(rng, lucks, 1.0, 0.03)}, WITH_SLO)
        p50 = next(each for each in comparisons if each.key == "ttft_p50_ms")
        found += p50.significant and p50.first_is_better
    assert found >= 48


def test_only_seeds_of_both_count() -> None:
    ours: BySeed = {0: {"ttft_p50_ms": 1.0}, 1: {"ttft_p50_ms": 1.0}, 2: {"ttft_p50_ms": 500.0}}
    theirs: BySeed = {0: {"ttft_p50_ms": 2.0}, 1: {"ttft_p50_ms": 2.0}, 3: {"ttft_p50_ms": 0.1}}
    (one,) = compare({"a": ours, "b": theirs}, ["ttft_p50_ms"])
    assert one.difference.value == pytest.approx(-0.5)


def test_comparisons_are_corrected_together() -> None:
    rng = random.Random(5)
    pair = {"a": runs(rng, [1.0] * 5, 0.9), "b": runs(rng, [1.0] * 5, 1.0)}
    (alone,) = compare(pair, ["ttft_p50_ms"])
    among = compare(pair, ["ttft_p50_ms", *["ttft_p50_ms"] * 3])[0]
    assert among.p_corrected == pytest.approx(min(1.0, 4 * alone.p_corrected))


def test_a_certain_but_tiny_difference_is_none() -> None:
    ours: BySeed = {seed: {"output_tokens_s": 1_000.0 + seed} for seed in range(5)}
    theirs: BySeed = {seed: {"output_tokens_s": 1_005.0 + seed} for seed in range(5)}
    (one,) = compare({"a": ours, "b": theirs}, ["output_tokens_s"])
    assert one.p_corrected < 1e-6
    assert not one.significant


def seen(key: str, ours: list[float], theirs: list[float]) -> Comparison:
    first: BySeed = {seed: {key: value} for seed, value in enumerate(ours)}
    second: BySeed = {seed: {key: value} for seed, value in enumerate(theirs)}
    return compare({"a": first, "b": second}, [key])[0]


@pytest.mark.parametrize("key", ["ttft_p99_ms", "goodput_share", "output_tokens_s"])
def test_seen_from_the_other_side(key: str) -> None:
    ours, theirs = [0.5, 0.6, 0.55], [0.8, 0.9, 0.95]
    turned, direct = seen(key, ours, theirs).seen_from("b"), seen(key, theirs, ours)
    assert (turned.first, turned.second) == ("b", "a")
    assert turned.difference.value == pytest.approx(direct.difference.value)
    assert (turned.difference.low, turned.difference.high) == pytest.approx(
        (direct.difference.low, direct.difference.high)
    )
    assert turned.first_is_better != seen(key, ours, theirs).first_is_better


def test_seen_from_the_other_side_of_a_bound_that_leaves_nothing() -> None:
    one = seen("ttft_p99_ms", [1.0, 1_000.0], [1.0, 1.0])
    assert one.difference.low == -1
    assert one.seen_from("b").difference.high == math.inf


def test_nobody_else_has_seen_it() -> None:
    with pytest.raises(ValueError, match="c is neither"):
        seen("ttft_p99_ms", [1.0], [2.0]).seen_from("c")


def test_sentences() -> None:
    ours = {s: QUIET | {"ttft_p99_ms": 59 + s / 2, "output_tokens_s": 100.0, "failed_share": 0.1} for s in range(5)}
    theirs = {s: QUIET | {"ttft_p99_ms": 100.0 + s, "output_tokens_s": 100.1} for s in range(5)}
    keys = ("ttft_p99_ms", "output_tokens_s")
    results = {"round_robin": theirs, "kv": ours}
    said = sentences(results, compare(results, keys), keys)
    assert said[1:] == [
        "kv: 10.0 % of the requests were rejected, failed or not finished; latencies are those of the others."
    ]
    assert said[0].startswith("kv beats round_robin by 41")
    assert said[0].endswith(" on P99 TTFT; no significant difference on output tok/s.")


def test_a_win_and_a_loss() -> None:
    ours = {s: QUIET | {"ttft_p99_ms": 50.0 + s, "ttft_p50_ms": 10.0 + s, "tpot_mean_ms": 22.0} for s in range(5)}
    theirs = {s: QUIET | {"ttft_p99_ms": 100.0 + s, "ttft_p50_ms": 20.0 + s, "tpot_mean_ms": 20.0} for s in range(5)}
    keys = ("ttft_p99_ms", "ttft_p50_ms", "tpot_mean_ms")
    results = {"a": ours, "b": theirs}
    (said,) = sentences(results, compare(results, keys), keys)
    assert said.startswith("a beats b by 4")
    assert "; it is worse by 10 % ± " in said or "; it is worse by 10.0 % ± " in said


def test_nothing_to_choose_between() -> None:
    rng = random.Random(1)
    results = {label: runs(rng, [1.0] * 5) for label in ("random", "random 2")}
    (said,) = sentences(results, compare(results, WITH_SLO), WITH_SLO)
    assert said.startswith("No significant difference between random")
    assert said.endswith(" on goodput, P99 TTFT, P50 TTFT, mean TPOT or output tok/s.")


def test_those_that_are_alike_share_a_sentence() -> None:
    alike: dict[str, BySeed] = {label: {s: QUIET | {"ttft_p99_ms": 50.0 + s} for s in range(5)} for label in "abc"}
    slow: BySeed = {s: QUIET | {"ttft_p99_ms": 100.0 + s} for s in range(5)}
    results = {**alike, "slow": slow}
    said = sentences(results, compare(results, ["ttft_p99_ms"]), ["ttft_p99_ms"])
    assert said[0].startswith("a beats slow by 4")
    assert said[1:] == ["No significant difference between a and b or c on P99 TTFT."]


def test_one_seed_is_said_to_be_one() -> None:
    results: dict[str, BySeed] = {
        "a": {0: QUIET | {"ttft_p99_ms": 50.0}},
        "b": {0: QUIET | {"ttft_p99_ms": 100.0}},
    }
    (said,) = sentences(results, compare(results, ["ttft_p99_ms"]), ["ttft_p99_ms"])
    assert said.startswith("a against b, one seed: 50 % better on P99 TTFT.")


def test_who_answers_nothing_is_beaten() -> None:
    nothing = {s: dict.fromkeys(QUIET, math.nan) | {"failed_share": 1.0, "saturated": 0.0} for s in range(5)}
    answers = {s: QUIET | {"ttft_p99_ms": 50.0, "failed_share": 0.0} for s in range(5)}
    results: dict[str, BySeed] = {"nothing": nothing, "answers": answers}
    keys = verdict_keys(results, with_slo=False)
    assert keys[0] == "failed_share"
    comparisons = compare(results, keys)
    assert leader(results, comparisons, keys) == leader(results, [], keys[1:]) == "answers"
    assert sentences(results, comparisons, keys)[0] == "answers beats nothing by 100.0 points ± 0.0 on failed requests."


def test_failures_are_not_compared_where_there_are_none() -> None:
    results: dict[str, BySeed] = {"a": {0: QUIET}, "b": {0: QUIET}}
    assert "failed_share" not in verdict_keys(results, with_slo=False)
    assert verdict_keys(results, with_slo=True) == WITH_SLO


def test_a_queue_that_grows_is_told() -> None:
    results: dict[str, BySeed] = {"a": {0: QUIET | {"saturated": 1.0, "queue_growth": 0.25}}}
    (said,) = sentences(results, [], ["ttft_p99_ms"])
    assert said.startswith("a: the queue still grew when the last requests came, by 25 % of arrivals")


def test_a_policy_without_results_is_left_out() -> None:
    results: dict[str, BySeed] = {"a": {0: QUIET}, "b": {}}
    assert sentences(results, [], ["ttft_p99_ms"]) == []


def test_few_seeds_are_told() -> None:
    results: dict[str, BySeed] = {
        "a": {0: QUIET | {"ttft_p99_ms": 50.0}, 1: QUIET | {"ttft_p99_ms": 60.0}},
        "b": {0: QUIET | {"ttft_p99_ms": 100.0}, 1: QUIET | {"ttft_p99_ms": 90.0}},
    }
    said = sentences(results, compare(results, ["ttft_p99_ms"]), ["ttft_p99_ms"])
    assert said == [
        "No significant difference between a and b on P99 TTFT.",
        "With 2 seeds not every large difference can be told from chance; 5 tell more (--seeds).",
    ]
