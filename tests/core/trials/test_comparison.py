"""Two arms compared, again and again: equal ones must not be told apart, worse ones must be, soon."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import msgspec
import pytest

from pointsman.core.model.request import Request
from pointsman.core.trials.arms import Arm, By, Place, Split
from pointsman.core.trials.comparison import Comparison, Sums, cached_change, changes, verdict
from pointsman.core.trials.tally import End, Result
from pointsman.core.trials.verdict import Change, Judgement, Quantity, judge


@dataclass(frozen=True)
class Traffic:
    """Requests whose times have a drifting load, prompts of many lengths and sessions that are alike in common."""

    share: float = 0.2
    by: By = By.REQUEST
    slower: float = 1.0
    """How many times as long all takes in the trial."""
    fails: float = 0.01
    trial_fails: float = 0.01
    uncached: float = 1.0
    """Part of what else is cached that the trial has."""

    def run(self, seed: int, count: int, looks_every: int = 25, worse_by: float = 0.0) -> tuple[int | None, Comparison]:
        """After how many requests the trial was called worse, if ever; the comparison then."""
        rng = random.Random(seed)
        split = Split(f"new{seed}", self.share, self.by)
        comparison, load, now_ms = Comparison(), 0.0, 0.0
        sessions: list[tuple[float, float]] = []
        for i in range(count):
            now_ms += rng.expovariate(1 / 50)
            load = 0.995 * load + rng.gauss(0, 0.08)
            if not sessions or rng.random() < 0.1:
                sessions.append((rng.gauss(0, 0.5), rng.gauss(7, 1)))
            key = max(0, len(sessions) - 1 - int(rng.expovariate(1 / 20)))
            alike, length = sessions[key] if self.by is By.SESSION else (0.0, rng.gauss(7, 1))
            place = split.place(Request(f"{seed}-{i}", "m", now_ms, 1, route_key=f"{seed}-{key}"))
            trial = place.arm is Arm.TRIAL
            slower = math.log(self.slower) if trial else 0.0
            tokens = int(math.exp(length)) + 1
            failed = rng.random() < (self.trial_fails if trial else self.fails)
            result = Result(
                end=End.FAILED if failed else End.FINISHED,
                at_ms=now_ms,
                prompt_tokens=tokens,
                cached_tokens=int(tokens * rng.random() * (self.uncached if trial else 1.0)),
                ttft_ms=math.exp(4 + load + alike + 0.6 * (length - 7) + rng.gauss(0, 0.7) + slower),
                itl_ms=math.exp(3 + load / 2 + alike / 3 + rng.gauss(0, 0.3) + slower),
                pace_ms=math.exp(3.2 + load / 2 + alike / 3 + rng.gauss(0, 0.4) + slower),
            )
            comparison.add(place, result)
            looks = i % looks_every == looks_every - 1
            if looks and verdict(comparison.sums, worse_by).judgement is Judgement.WORSE:
                return i + 1, comparison
        return None, comparison


@pytest.mark.parametrize(("share", "by"), [(0.5, By.REQUEST), (0.2, By.SESSION)])
def test_equal_arms_are_seldom_called_worse_however_often_one_looks(share: float, by: By) -> None:
    called = [Traffic(share, by).run(seed, 1500)[0] for seed in range(60)]
    # Each run is looked at 60 times. 5 % of 60 runs are 3; more than 7 have a chance of 1 in 80 at 5 %.
    assert sum(at is not None for at in called) <= 7


@pytest.mark.parametrize(
    ("traffic", "within"),
    [
        (Traffic(0.05, By.REQUEST, slower=1.2), 8000),
        (Traffic(0.2, By.SESSION, slower=1.2), 16_000),
        (Traffic(0.05, By.REQUEST, slower=2.0), 1000),
    ],
)
def test_a_slower_trial_is_found_within_so_many_requests(traffic: Traffic, within: int) -> None:
    for seed in range(5):
        at, comparison = traffic.run(seed, within, worse_by=0.05)
        assert at is not None
        found = verdict(comparison.sums, 0.05)
        assert "TTFT is +" in found.why or "ITL is +" in found.why or "time per output token is +" in found.why


def test_a_trial_that_fails_more_often_is_found() -> None:
    at, comparison = replace(Traffic(), trial_fails=0.1).run(1, 4000)
    assert at is not None
    assert verdict(comparison.sums, 0.0).why.startswith("requests fail more often: ")


def test_a_faster_trial_is_better_and_an_equal_one_is_no_worse_in_the_end() -> None:
    _, faster = Traffic(0.5, slower=0.7).run(2, 3000)
    assert verdict(faster.sums, 0.05).judgement is Judgement.BETTER
    _, equal = Traffic(0.5).run(3, 200)
    assert verdict(equal.sums, 0.05).judgement is Judgement.UNKNOWN
    _, equal = Traffic(0.5).run(3, 15_000, looks_every=5000)
    assert verdict(equal.sums, 0.1).judgement is Judgement.NO_WORSE


def test_within_the_margin_is_not_worse() -> None:
    assert Traffic(0.5, slower=1.1).run(4, 6000, worse_by=0.2)[0] is None
    assert Traffic(0.5, slower=1.1).run(4, 6000, worse_by=0.0)[0] is not None


def test_changes_are_about_right_and_drift_of_load_is_no_difference() -> None:
    _, comparison = Traffic(0.5, slower=1.3, uncached=0.5).run(5, 8000, looks_every=10_000)
    found = {change.quantity: change for change in changes(comparison.sums)}
    assert set(found) == {Quantity.TTFT, Quantity.ITL, Quantity.SPEED}
    for change in found.values():
        assert change.low < 1.3 < change.high
        assert change.high / change.low < 1.25
    points = cached_change(comparison.sums)
    assert points is not None
    assert points.low < -0.25 < points.high


def test_nothing_is_said_of_few_requests_or_of_few_sessions() -> None:
    comparison = Comparison()
    assert verdict(comparison.sums, 0.0).judgement is Judgement.UNKNOWN
    rng = random.Random(1)
    for i in range(400):
        trial = i % 2 == 1
        # Each arm has the requests of three sessions, hundreds of requests in all, and those of the trial take longer.
        place = Place(Arm.TRIAL if trial else Arm.BASE, i % 6)
        comparison.add(
            place,
            Result(end=End.FINISHED, at_ms=i, prompt_tokens=9, ttft_ms=(900 if trial else 100) * rng.uniform(0.9, 1.1)),
        )
    assert verdict(comparison.sums, 0.0).judgement is Judgement.UNKNOWN
    assert changes(comparison.sums) == []


def test_a_worker_that_dies_with_all_its_requests_is_one_failure() -> None:
    comparison = Comparison()
    for i in range(200):
        comparison.add(
            Place(Arm.TRIAL if i % 20 == 0 else Arm.BASE, i % 64),
            Result(end=End.FINISHED, at_ms=10.0 * i, prompt_tokens=1),
        )
    for i in range(30):
        comparison.add(Place(Arm.TRIAL, i), Result(end=End.FAILED, at_ms=2000.0 + i, prompt_tokens=1))
    assert comparison.sums.failures == {Arm.TRIAL: 1}
    assert comparison.sums.trial.ends[End.FAILED] == 30
    assert verdict(comparison.sums, 0.0).judgement is Judgement.UNKNOWN


def test_sums_of_several_front_ends_add_up_and_travel_as_json() -> None:
    _, one = Traffic(0.3).run(6, 300)
    _, two = Traffic(0.3, slower=1.1).run(7, 300)
    sent = [msgspec.json.decode(msgspec.json.encode(each.sums), type=Sums) for each in (one, two)]
    assert sent[0] == one.sums
    total = Sums()
    for sums in sent:
        total.merge(sums)
    assert total.base.requests + total.trial.requests == 600
    assert total.trial.ttft.sketch.total == one.sums.trial.ttft.sketch.total + two.sums.trial.ttft.sketch.total
    assert total.bet.logs == [a + b for a, b in zip(one.sums.bet.logs, two.sums.bet.logs, strict=True)]
    assert len(msgspec.json.encode(total)) < 64_000


def test_times_of_nothing_and_of_no_length_break_nothing() -> None:
    comparison = Comparison()
    for i in range(50):
        result = Result(end=End.FINISHED, at_ms=0.0, prompt_tokens=0, cached_tokens=0, ttft_ms=0.0, pace_ms=0.0)
        comparison.add(Place(Arm.TRIAL if i % 2 else Arm.BASE, i), result)
    assert verdict(comparison.sums, 0.0).judgement is Judgement.UNKNOWN


def test_the_worst_quantity_decides() -> None:
    slower, faster = Change(Quantity.TTFT, 1.3, 1.1, 1.5), Change(Quantity.ITL, 0.8, 0.7, 0.9)
    assert judge([faster, slower], 1.0, 0.05, 0.05).judgement is Judgement.WORSE
    assert judge([faster], 1.0, 0.05, 0.05).judgement is Judgement.BETTER
    open_ = Change(Quantity.TTFT, 1.0, 0.8, 1.2)
    found = judge([faster, open_], 1.0, 0.05, 0.05)
    assert found.judgement is Judgement.UNKNOWN
    assert found.why.startswith("ITL is -20.0 % (between -30.0 % and -10.0 %) of the base's, but TTFT is +0.0 %")
    assert judge([faster], 80.0, 0.05, 0.05).judgement is Judgement.WORSE
    assert judge([faster], 79.0, 0.05, 0.05).judgement is Judgement.BETTER
