"""Recursive least squares of step coefficients: robust, forgetting, and never below zero.

The unknowns are the coefficients in units of their prior. The prior says two things: all of them may be off by one
common factor (another GPU, another precision), and each by some more. So a few intervals of plain decoding, which tell
little of prefill, still correct prefill by what they found of the common factor. Old intervals fade (`memory`), the
prior does not: what no traffic tells apart any more goes back to its share of the prior instead of drifting. It
widens with what was learned, or an engine of quite other proportions would look like noise, and noise like a reason to
believe the prior.

Normal equations are kept, not their inverse; both are six by six.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pointsman.core.timing.interval import FEATURES, Interval
from pointsman.core.timing.nonnegative import solve_nonnegative
from pointsman.core.timing.step import StepCoefficients

_COMMON_SD = 1.0
_OWN_SD = (0.4, 1.0, 1.0, 0.6, 1.0, 1.5)
"""Of a, b, c, d, q and the overhead, in units of their scale."""
_TAIL = 4.0
"""Degrees of freedom of the t distribution that deviations are taken to have: the further off, the less believed.
Others' preemptions, pauses and lost reports make intervals long, and nobody says which."""
_LEAST_NOISE, _FIRST_NOISE = 0.01, 0.05
"""Relative noise of an interval: the least that is believed, and the first guess."""
_MEDIAN_DEVIATION = 0.674
"""Of a normal distribution, in standard deviations."""
_OVERHEAD_SCALE_MS = 20.0
_LEAST_STEP = 0.01
"""Of the prior's a: a step takes some time, whatever noise makes of it."""
_LEAST_TOLD_SD = 0.05
"""In units of a coefficient's scale: what others found to be nothing may be something."""
_RIDGE = 1e-9
"""Of the diagonal: what intervals of one kind alone say can be solved, however much of it there is."""

Vector = NDArray[np.float64]


def _scales(prior: StepCoefficients) -> Vector:
    """What one unit of each coefficient is: its prior, or where that is 0 what would be small beside the others."""
    a = max(prior.a_ms, 0.1)
    d = max(prior.d_ms_per_prefill_token, a * 1e-3)
    return np.array(
        (
            a,
            max(prior.b_ms_per_sequence, a * 2e-3),
            max(prior.c_ms_per_1000_context_tokens, a * 2e-3),
            d,
            max(prior.q_ms_per_square_token, d / 100_000),
            _OVERHEAD_SCALE_MS,
        )
    )


class StepRegression:
    """Learned coefficients of one class of workers. `memory`: intervals after which one counts a third."""

    def __init__(self, prior: StepCoefficients, memory: float = 300.0) -> None:
        self.prior = prior
        self._memory = memory
        self._scale = _scales(prior)
        values = (
            prior.a_ms,
            prior.b_ms_per_sequence,
            prior.c_ms_per_1000_context_tokens,
            prior.d_ms_per_prefill_token,
            prior.q_ms_per_square_token,
            _OVERHEAD_SCALE_MS / 2,
        )
        mean = np.array(values) / self._scale
        # The common factor is one of the engine, not of the way there.
        common = np.where(np.arange(len(FEATURES)) < 5, mean, 0.0)
        self._prior_mean: Vector = mean
        self._prior_common: Vector = _COMMON_SD**2 * np.outer(common, common)
        self._told = False
        self._told_sd: Vector = np.zeros(len(FEATURES))
        """Of the prior of coefficients of which others told; 0: nobody did."""
        covariance = self._prior_covariance(mean)
        self._information = np.zeros_like(covariance)
        self._right: Vector = np.zeros(len(FEATURES))
        self._covariance: Vector = covariance
        self._values: Vector = mean
        self._plain: tuple[float, ...] = tuple((mean * self._scale).tolist())
        self.noise = _FIRST_NOISE
        """Relative deviation of an interval from what is predicted."""
        self.weight = 0.0
        """Intervals learned, those that tell the same time together as one, none forgotten."""

    @property
    def coefficients(self) -> StepCoefficients:
        """As learned so far."""
        return StepCoefficients(*self._plain[:5])

    @property
    def overhead_ms(self) -> float:
        """Fixed time of a request on its way to the engine and back."""
        return self._plain[5]

    def predicted_ms(self, interval: Interval) -> float:
        """The time that the coefficients as they are give an interval."""
        a, b, c, d, q, o = self._plain
        return (
            a * interval.steps
            + b * interval.sequence_steps
            + c * interval.context_token_steps / 1000
            + d * interval.prefill_tokens
            + q * interval.prefill_squares
            + o * interval.starts
        )

    def doubt(self, interval: Interval) -> float:
        """Relative standard deviation of a prediction, for not knowing the coefficients."""
        row = np.array(interval.features) * self._scale
        size = max(self.predicted_ms(interval), 1e-9)
        return math.sqrt(max(0.0, float(row @ self._covariance @ row))) / size

    def evidence(self, work: Interval) -> float:
        """What was seen of how long such work takes, as one over the relative variance; 0: nothing but the prior.

        What plain proportions say of it, from other work that was seen, is no evidence.
        """
        row = np.array(work.features) * self._scale
        size = max(self.predicted_ms(work), 1e-9)
        variance = max(1e-12, float(row @ self._covariance @ row))
        unseen = float(np.square(row) @ self._own_variance(self._values))
        return max(0.0, size**2 * (1 / variance - 1 / unseen))

    def expect(self, step: StepCoefficients, features: Sequence[str], relative_sd: float) -> None:
        """Let the prior of some coefficients be what others found, whatever the common factor of the rest is."""
        told = (
            step.a_ms,
            step.b_ms_per_sequence,
            step.c_ms_per_1000_context_tokens,
            step.d_ms_per_prefill_token,
            step.q_ms_per_square_token,
        )
        self._told = True
        for feature in features:
            one = FEATURES.index(feature)
            value = told[one] / float(self._scale[one])
            self._prior_mean[one] = value
            self._told_sd[one] = max(relative_sd * value, _LEAST_TOLD_SD)
            self._prior_common[one, :] = self._prior_common[:, one] = 0.0
        self._solve()

    def learn(self, interval: Interval, *, factor: float = 1.0, factor_sd: float = 0.0) -> None:
        """Take one interval in, of a worker that takes `factor` times as long as its class, as far as is known."""
        actual_ms = interval.elapsed_ms / factor
        predicted_ms = max(self.predicted_ms(interval), 1e-3)
        # Relative to the middle of both, so that too slow a prior is worth as much as too fast a one.
        size = math.sqrt(actual_ms * predicted_ms)
        row = np.array(interval.features) * self._scale / size
        error = (actual_ms - predicted_ms) / size
        variance = self.noise**2 + factor_sd**2
        expected = math.sqrt(variance + max(0.0, float(row @ self._covariance @ row)))
        trust = min(1.0, (_TAIL + 1) / (_TAIL + (error / expected) ** 2))
        weight = interval.weight * trust
        keep = math.exp(-interval.weight / self._memory)
        self._information *= keep
        self._right *= keep
        # Precision relative to the present noise: what was learned when there was less of it does not outweigh all.
        weighted = weight * self.noise**2 / variance * row
        self._information += weighted[:, None] * row
        self._right += weighted * (actual_ms / size)
        self.weight += interval.weight
        self._solve()
        # The median deviation, a step up or down at a time: what is far off does not count for more than what is not.
        # While the coefficients are in doubt most of a deviation is theirs.
        share = self.noise**2 / expected**2
        direction = 1 if abs(error) > _MEDIAN_DEVIATION * self.noise else -1
        self.noise = max(_LEAST_NOISE, self.noise * math.exp(0.05 * interval.weight * share * direction))

    def rescale(self, factor: float) -> None:
        """All steps take `factor` times as long as thought."""
        # What intervals say, not what is thought: the prior's part of that is no evidence.
        self._right *= factor
        self._solve()

    def loosen(self, keep: float) -> None:
        """Believe only a share of what was learned: the engine is not what it was."""
        self._information *= keep
        self._right *= keep
        self._solve()

    def _prior_covariance(self, values: Vector) -> Vector:
        covariance: Vector = np.diag(self._own_variance(values)) + self._prior_common
        return covariance

    def _own_variance(self, values: Vector) -> Vector:
        # Wider where more is there than the prior says: twenty times as much is not twenty deviations. The root, as
        # three times as much of everything is common.
        own: Vector = np.square(np.array(_OWN_SD)) * np.maximum(1.0, values)
        return np.where(self._told_sd > 0, np.square(self._told_sd), own) if self._told else own

    def _solve(self) -> None:
        variance = self.noise**2
        prior_information = _inverse(self._prior_covariance(self._values))
        matrix = self._information + variance * prior_information
        matrix += _RIDGE * np.diag(matrix.diagonal())
        inverse = _inverse(matrix)
        self._covariance = variance * inverse
        right = self._right + variance * (prior_information @ self._prior_mean)
        values = inverse @ right
        # Nothing costs less than nothing: hold those at zero and fit the others to what remains.
        if min(values.tolist()) < 0:
            values = solve_nonnegative(matrix, right)
        values[0] = max(values[0], _LEAST_STEP)
        self._values = values
        self._plain = tuple((values * self._scale).tolist())


def _inverse(matrix: Vector) -> Vector:
    return np.linalg.inv(matrix).astype(np.float64, copy=False)
