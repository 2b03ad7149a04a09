from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.timing.made_intervals import TRUTH, interval
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.online import LearnedTimes
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.step import StepCoefficients

BUSY = Interval(1, 32, 32 * 40, 32 * 40 * 2500)
FOUR = ("w0", "w1", "w2", "w3")


def fleet(factor: float = 1.0) -> LearnedTimes:
    return LearnedTimes({"h100": TRUTH.scaled(factor)})


def step_ms(times: LearnedTimes, worker: str) -> float:
    found = times.coefficients(worker)
    assert found is not None
    return BUSY.predicted_ms(found)


def teach(times: LearnedTimes, rng: random.Random, rounds: int, slow: dict[str, float] | None = None) -> None:
    for _ in range(rounds):
        for worker in FOUR:
            times.observe(worker, "h100", interval(rng, slow=(slow or {}).get(worker, 1.0)))


@pytest.mark.parametrize("prior", [1.0, 3.0, 1 / 3])
def test_a_slow_worker_is_a_factor_and_its_class_stays(prior: float) -> None:
    times = fleet(prior)
    teach(times, random.Random(1), 60, {"w2": 1.5})
    assert times.factor("w2") == pytest.approx(1.5, rel=0.05)
    assert [times.factor(worker) for worker in ("w0", "w1", "w3")] == pytest.approx([1, 1, 1], abs=0.05)
    assert BUSY.predicted_ms(times.class_coefficients("h100")) == pytest.approx(BUSY.predicted_ms(TRUTH), rel=0.05)
    assert step_ms(times, "w2") == pytest.approx(1.5 * BUSY.predicted_ms(TRUTH), rel=0.05)


def test_one_that_gets_hot_is_followed_and_so_is_its_recovery() -> None:
    times, rng = fleet(), random.Random(2)
    teach(times, rng, 50)
    teach(times, rng, 40, {"w1": 1.5})
    assert times.factor("w1") == pytest.approx(1.5, rel=0.07)
    assert BUSY.predicted_ms(times.class_coefficients("h100")) == pytest.approx(BUSY.predicted_ms(TRUTH), rel=0.05)
    teach(times, rng, 60)
    assert times.factor("w1") == pytest.approx(1.0, abs=0.06)


def test_a_sudden_change_of_a_worker_known_for_long_is_followed_soon() -> None:
    times, rng = fleet(), random.Random(12)
    teach(times, rng, 150)
    teach(times, rng, 10, {"w1": 1.5})
    assert times.factor("w1") == pytest.approx(1.5, rel=0.06)


def test_what_all_workers_share_is_the_class() -> None:
    times, rng = fleet(), random.Random(3)
    teach(times, rng, 50)
    teach(times, rng, 150, dict.fromkeys(FOUR, 1.4))
    assert BUSY.predicted_ms(times.class_coefficients("h100")) == pytest.approx(
        1.4 * BUSY.predicted_ms(TRUTH), rel=0.06
    )
    assert [times.factor(worker) for worker in FOUR] == pytest.approx([1] * 4, abs=0.05)


def test_a_lone_worker_is_its_class_and_a_change_of_it_is_believed() -> None:
    times, rng = fleet(), random.Random(4)
    for _ in range(200):
        times.observe("w", "h100", interval(rng))
    for _ in range(60):
        times.observe("w", "h100", interval(rng, slow=2.0))
    assert times.factor("w") == 1
    assert step_ms(times, "w") == pytest.approx(2 * BUSY.predicted_ms(TRUTH), rel=0.06)


def test_compilation_after_a_join_is_not_learned() -> None:
    times, rng = fleet(), random.Random(5)
    teach(times, rng, 40)
    before = step_ms(times, "w0")
    times.joined("w0", "h100")
    for slow in (40.0, 3.0):
        times.observe("w0", "h100", interval(rng, slow=slow))
    assert step_ms(times, "w0") == pytest.approx(before, rel=0.02)
    assert times.error("w0").samples == 0  # type: ignore[union-attr]
    for _ in range(5):
        times.observe("w0", "h100", interval(rng))
    assert step_ms(times, "w0") == pytest.approx(before, rel=0.05)


def test_compilation_that_goes_on_is_not_learned_either() -> None:
    times, rng = fleet(), random.Random(11)
    times.joined("w", "h100")
    for slow in (90.0, 30.0, 8.0, 3.0):
        times.observe("w", "h100", interval(rng, slow=slow))
    assert step_ms(times, "w") == BUSY.predicted_ms(TRUTH)


def test_what_repeats_is_the_truth() -> None:
    times, rng = fleet(1 / 3), random.Random(6)
    for number in range(3):
        assert step_ms(times, "w") == pytest.approx(BUSY.predicted_ms(TRUTH) / 3) if number else True
        times.observe("w", "h100", interval(rng))
    assert step_ms(times, "w") > 0.8 * BUSY.predicted_ms(TRUTH)


@pytest.mark.parametrize(("decode", "prefill"), [(5, 2), (10, 2), (10, 5), (3, 10)])
def test_a_prior_wrong_by_another_factor_for_prompts_is_corrected(decode: float, prefill: float) -> None:
    prior = StepCoefficients(6.42, 0.01, 0.05, 0.02)
    truth = StepCoefficients(6.42 * decode, 0.01 * decode, 0.05 * decode, 0.02 * prefill)
    times = LearnedTimes({"h100": prior})
    decoding, prompt = Interval(1, 16, 64, 64_000), Interval(1, 1, prefill_tokens=2000, starts=1)
    for number in range(60):
        # Turn about, so that three in a row never agree.
        work = (decoding, prompt)[number % 2]
        times.observe("w0", "h100", replace(work, elapsed_ms=work.predicted_ms(truth, 5)))
    found = times.coefficients("w0")
    assert found is not None
    assert decoding.predicted_ms(found) == pytest.approx(decoding.predicted_ms(truth), rel=0.05)
    error = times.error("w0")
    assert error is not None
    assert error.samples == 60


def test_workers_of_a_class_of_quite_other_proportions_than_its_prior_learn_them_together() -> None:
    # A CPU under a GPU's prior: prompts cost twenty times as much beside a step.
    truth, rng = StepCoefficients(5.95, 0.465, 0.125, 0.375), random.Random(2)
    times = LearnedTimes({"cpu": StepCoefficients(6.4, 0.01, 0.05, 0.0196)})
    for _ in range(100):
        for worker in ("w0", "w1", "w2"):
            tokens, steps = float(rng.randint(40, 600)), rng.randint(8, 40)
            prompt = Interval(1, 1, prefill_tokens=tokens, prefill_squares=tokens**2, starts=1)
            decoding = Interval(1, steps, steps, steps * rng.randint(100, 600))
            for work in (prompt, decoding):
                times.observe(worker, "cpu", replace(work, elapsed_ms=work.predicted_ms(truth)))
    found = times.class_coefficients("cpu")
    assert found.d_ms_per_prefill_token == pytest.approx(truth.d_ms_per_prefill_token, rel=0.03)
    assert [times.factor(worker) for worker in ("w0", "w1", "w2")] == pytest.approx([1, 1, 1], abs=0.03)


def test_a_worker_of_another_class_starts_anew() -> None:
    times, rng = LearnedTimes({"h100": TRUTH, "a100": TRUTH.scaled(2)}), random.Random(7)
    teach(times, rng, 20, {"w0": 1.4})
    times.observe("w0", "a100", interval(rng, slow=2.0))
    assert times.factor("w0") == 1
    times.left("w0")
    assert times.coefficients("w0") is None
    assert times.error("w0") is times.ttft_error("w0") is None
    assert times.times("w0") is times.predict_ttft_ms("w0", Load(), 10) is None
    assert set(times.timing()) == {"w1", "w2", "w3"}
    times.left("w0")
    with pytest.raises(ConfigError, match="no prior step times for workers of class 'b200'"):
        times.joined("w9", "b200")
    assert LearnedTimes({}, default=TRUTH).class_coefficients("any") == TRUTH


def test_it_says_how_wrong_it_was_and_how_far_it_may_be() -> None:
    times, rng = fleet(), random.Random(8)
    for _ in range(200):
        times.observe("w", "h100", interval(rng, noise=0.1))
    error = times.error("w")
    assert error is not None
    assert error.samples == 128
    # Mean of |gauss| is 0.8 standard deviations.
    assert error.mape == pytest.approx(8.0, rel=0.3)
    known = times.times("w")
    assert known is not None
    p50, p90 = known.step_ratios
    assert BUSY.predicted_ms(known.step) * p50 == pytest.approx(BUSY.predicted_ms(TRUTH), rel=0.05)
    assert p90 / p50 == pytest.approx(1.13, abs=0.04)


def test_first_tokens_have_a_spread_of_their_own() -> None:
    times, rng = fleet(), random.Random(9)
    times.joined("w", "h100")
    load = Load(8, 16_000, 4_000, 2)
    plain = times.predict_ttft_ms("w", load, 2_000)
    assert plain == pytest.approx(ttft_ms(TRUTH, load, 2_000) + times.overhead_ms("w"))
    before = times.times("w")
    assert before is not None
    assert before.ttft_ratios == (1, 2)
    for _ in range(100):
        times.observe_first_token("w", 100.0, rng.uniform(110, 130))
    after = times.times("w")
    assert after is not None
    assert after.ttft_ratios == pytest.approx((1.2, 1.28), rel=0.02)
    error = times.ttft_error("w")
    assert error is not None
    assert error.mape == pytest.approx(16.5, abs=2)
    times.observe_first_token("gone", 1.0, 1.0)


def test_the_same_traffic_teaches_the_same() -> None:
    one, two = fleet(), fleet()
    teach(one, random.Random(10), 30, {"w1": 1.3})
    teach(two, random.Random(10), 30, {"w1": 1.3})
    assert one.timing() == two.timing()
