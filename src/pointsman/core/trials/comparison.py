"""Comparison: the requests of both arms since the rollout was last changed, and what they say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pointsman.core.trials.arms import Arm, Place
from pointsman.core.trials.baseline import Baseline
from pointsman.core.trials.buckets import Buckets
from pointsman.core.trials.sequential import LEAST_FREEDOM, FailureBet, reach
from pointsman.core.trials.tally import End, Result, Series, Tally
from pointsman.core.trials.verdict import JUDGED, Change, Quantity, Verdict, judge

ALPHA = 0.05
"""Chance that two equal arms are ever called worse, however long and often they are looked at."""
LEAST_REQUESTS = 20
"""Values of each arm before limits are given."""
_LOG_SCALE = 0.2
"""Limits are tightest for effects of about this size: ln 1.2 is 0.18."""
_CACHED_SCALE = 0.1
_COMPANY_MS = 1_000.0
"""A dying worker fails all its requests at once: failures so close to the last that counted are its company."""
_LEAST_FAILURES = 3
_RECENT_REQUESTS = 30.0
_MOST_SHARE = 0.99
_LEAST_MS = 0.01


@dataclass(frozen=True, slots=True)
class Points:
    """A difference of two shares, trial less base, and its limits."""

    difference: float
    low: float
    high: float


@dataclass(slots=True)
class Sums:
    """All that is known of both arms; of several front ends it can be added."""

    base: Tally = field(default_factory=Tally)
    trial: Tally = field(default_factory=Tally)
    bet: FailureBet = field(default_factory=FailureBet)
    failures: dict[Arm, int] = field(default_factory=dict)
    """Failures that counted for the bet."""

    def of(self, arm: Arm) -> Tally:
        """One arm's."""
        return self.trial if arm is Arm.TRIAL else self.base

    def merge(self, other: Sums) -> None:
        """Add another front end's. Bets against the same thing on other requests multiply."""
        self.base.merge(other.base)
        self.trial.merge(other.trial)
        self.bet.logs = [a + b for a, b in zip(self.bet.logs, other.bet.logs, strict=True)]
        for arm, count in other.failures.items():
            self.failures[arm] = self.failures.get(arm, 0) + count


class Comparison:
    """Takes results one by one, in the order in which requests end."""

    def __init__(self) -> None:
        self.sums = Sums()
        self._baselines = {quantity: Baseline() for quantity in (Quantity.TTFT, Quantity.ITL, Quantity.SPEED)}
        self._failed_ms = -math.inf
        self._recent_share = 0.0

    def add(self, place: Place, result: Result) -> None:
        """A request ended."""
        tally = self.sums.of(place.arm)
        if result.end is End.FAILED:
            self._failed(place.arm, result.at_ms)
        tally.ends[result.end] = tally.ends.get(result.end, 0) + 1
        self._recent_share += ((place.arm is Arm.TRIAL) - self._recent_share) / _RECENT_REQUESTS
        for quantity, series, value_ms in (
            (Quantity.TTFT, tally.ttft, result.ttft_ms),
            (Quantity.ITL, tally.itl, result.itl_ms),
            (Quantity.SPEED, tally.pace, result.pace_ms),
        ):
            if value_ms is not None:
                value_ms = max(value_ms, _LEAST_MS)
                baseline = self._baselines[quantity]
                series.add(
                    value_ms, place.bucket, baseline.residual(math.log(value_ms), result.prompt_tokens, result.at_ms)
                )
        if result.cached_tokens is not None and result.prompt_tokens > 0:
            tally.cached.add(place.bucket, result.cached_tokens, result.prompt_tokens)

    def _failed(self, arm: Arm, at_ms: float) -> None:
        base, trial = self.sums.base.requests, self.sums.trial.requests
        if at_ms - self._failed_ms < _COMPANY_MS or not base or not trial:
            return
        self._failed_ms = at_ms
        # The trial's sessions may be the busy ones just now: then more failures are theirs, for no fault of it.
        share = max(trial / (base + trial), min(self._recent_share, _MOST_SHARE))
        self.sums.bet.add(arm is Arm.TRIAL, share)
        self.sums.failures[arm] = self.sums.failures.get(arm, 0) + 1


def changes(sums: Sums, alpha: float = ALPHA) -> list[Change]:
    """How the times of both arms differ; only those of which limits can be given. `alpha`: see `judge`."""
    pairs = (
        (Quantity.TTFT, sums.base.ttft, sums.trial.ttft),
        (Quantity.ITL, sums.base.itl, sums.trial.itl),
        (Quantity.SPEED, sums.base.pace, sums.trial.pace),
    )
    found = (_change(quantity, base, trial, alpha / JUDGED) for quantity, base, trial in pairs)
    return [change for change in found if change is not None]


def _change(quantity: Quantity, base: Series, trial: Series, alpha: float) -> Change | None:
    if min(base.sketch.total, trial.sketch.total) < LEAST_REQUESTS:
        return None
    points = _difference(base.rest, trial.rest, _LOG_SCALE, alpha)
    if points is None:
        return None
    return Change(quantity, math.exp(points.difference), math.exp(points.low), math.exp(points.high))


def cached_change(sums: Sums, alpha: float = ALPHA) -> Points | None:
    """How the cached shares of prompt tokens differ."""
    return _difference(sums.base.cached, sums.trial.cached, _CACHED_SCALE, alpha / JUDGED)


def _difference(base: Buckets, trial: Buckets, scale: float, alpha: float) -> Points | None:
    one, two = base.estimate(), trial.estimate()
    if one is None or two is None or min(one.freedom, two.freedom) < LEAST_FREEDOM:
        return None
    both = two.minus(one)
    far = reach(both.error, both.freedom, scale, alpha)
    return Points(both.value, both.value - far, both.value + far) if math.isfinite(far) else None


def verdict(sums: Sums, worse_by: float, alpha: float = ALPHA) -> Verdict:
    """Whether the trial is worse; see `judge`."""
    # One failing client or one dead worker is no evidence, whatever the odds.
    evidence = sums.bet.evidence() if sums.failures.get(Arm.TRIAL, 0) >= _LEAST_FAILURES else 1.0
    return judge(changes(sums, alpha), evidence, alpha, worse_by)
