"""Fit: the parameters with which the replayed times are closest to the measured ones, and how sure they are.

Logarithms of times are compared by a robust loss: a request that had bad luck counts little. Weak priors around the
first guess hold what the measurements do not say. The spread of times to first token and of times per token is found
on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, minimize

from pointsman.app.calibration.measurement import Measurement
from pointsman.app.calibration.objective import (
    Objective,
    Residuals,
    cauchy,
    cauchy_weights,
    robust_scale,
)
from pointsman.app.calibration.parameters import Floats, Parameters
from pointsman.app.calibration.start import LONG_PROMPT_TOKENS, first_guesses, known_steps
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.timing.step import StepCoefficients

PRIOR_SPREAD = {"a": 0.5, "b": 1.0, "c": 1.0, "d": 0.5, "q": 1.0, "overhead": 2.0}
"""Of the logarithm around the first guess, which has the right speed: proportions differ less between engines."""
_LEAST_SPREAD = (0.03, 0.02)
"""Of TTFT and TPOT: clocks and the model are not more exact than that."""
_FIRST_SPREAD = (0.2, 0.05)
TRAFFIC_SPREAD = 0.05
"""Of the logarithm by which assumed traffic slows tokens more, or less, than the one there was."""
_GUESSES = 2
_ROUNDS = 2
# Replayed times jump when a step more or less fits in between: slopes are taken over a wider piece.
_DIFFERENCE = 0.04
_MOST_STEPS = 6
_STRIDE = 0.2
_MOST_TRIALS = 150

OnStage = Callable[[str], None]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters found, and what is needed to say how good they are."""

    parameters: Parameters
    names: tuple[str, ...]
    """What was fitted; the rest was given."""
    centre: Parameters
    """Around which the priors are."""
    spread: tuple[float, float]
    """Of the logarithms of TTFT and TPOT."""
    residuals: Residuals
    jacobian: Floats
    """Of `residuals.all` divided by their spread, one column a name."""
    ahead: bool
    """Whether the engine schedules one step ahead."""
    objective: Objective
    """What was minimised."""

    @property
    def information(self) -> Floats:
        """Inverse covariance of the logarithms of the parameters, priors included."""
        weights = cauchy_weights(self.residuals.scaled(self.spread))
        found: Floats = (self.jacobian.T * weights) @ self.jacobian + np.diag(self.prior_information)
        return found

    @property
    def prior_information(self) -> Floats:
        """What is known before any measurement."""
        return np.array([PRIOR_SPREAD[name] ** -2 for name in self.names])


def fit(
    measured: Sequence[Measurement],
    engine: EngineConfig,
    *,
    start: StepCoefficients | None = None,
    ahead: bool | None = None,
    on_stage: OnStage = lambda _: None,
) -> Solution:
    """Fit what the measurements can tell. `start`: of a similar engine; None: all known ones are tried.

    `ahead`: whether the engine schedules one step ahead (vLLM's asynchronous scheduling); None: both are tried.
    """
    modes = (True, False) if ahead is None else (ahead,)
    found = []
    for mode in modes:
        on_stage("scheduling a step ahead" if mode else "scheduling between steps")
        objective = Objective(measured, engine, ahead=mode)
        found.append((*_first_fit(objective, measured, start), objective))
    on_stage("the best of them")
    _, parameters, centre, objective = min(found, key=lambda one: one[0])
    return _settle(objective, parameters, centre)


def refit(solution: Solution, keep: Mask) -> Parameters:
    """The parameters that requests with `keep` alone would have given, from where all of them led."""
    start = solution.parameters
    return _least_squares(solution.objective, solution.centre, start, solution.spread, keep, _MOST_TRIALS // 3)[1]


def _first_fit(
    objective: Objective, measured: Sequence[Measurement], start: StepCoefficients | None
) -> tuple[float, Parameters, Parameters]:
    """Cost, parameters and the centre of their priors."""
    in_engine = all(one.in_engine for one in measured)
    longest = max(request.prompt_tokens for one in measured for request in one.requests)
    guesses = first_guesses(
        objective,
        known_steps(start),
        overhead_ms=0.0 if in_engine else objective.shortest_ttft_ms / 10,
        long_prompts=longest >= LONG_PROMPT_TOKENS,
    )
    # Which proportions are right shows only after they were fitted.
    tried = [(*_least_squares(objective, centre, centre, _FIRST_SPREAD, None), centre) for centre in guesses[:_GUESSES]]
    return min(tried, key=lambda one: one[0])


def _settle(objective: Objective, parameters: Parameters, centre: Parameters) -> Solution:
    names = fitted_names(centre)
    for _ in range(_ROUNDS):
        residuals = objective.residuals(parameters)
        spread = (
            robust_scale(residuals.ttft[residuals.ttft_weight > 0], _LEAST_SPREAD[0]),
            robust_scale(residuals.tpot, _LEAST_SPREAD[1]),
        )
        _, parameters = _least_squares(objective, centre, parameters, spread, None)
    logs = parameters.logs_from(names, centre)
    jacobian = _slopes(lambda x: objective.residuals(centre.moved(names, x)).scaled(spread), logs)
    return Solution(
        parameters, names, centre, spread, objective.residuals(parameters), jacobian, objective.ahead, objective
    )


def fitted_names(centre: Parameters) -> tuple[str, ...]:
    """What is fitted: all but what is given as zero."""
    return tuple(name for name in PRIOR_SPREAD if centre.value(name) > 0)


def _least_squares(
    objective: Objective,
    centre: Parameters,
    from_: Parameters,
    spread: tuple[float, float],
    keep: Mask | None,
    most_trials: int = _MOST_TRIALS,
) -> tuple[float, Parameters]:
    names = fitted_names(centre)
    prior = np.array([*(PRIOR_SPREAD[name] for name in names), TRAFFIC_SPREAD])

    def residuals(logs: Floats) -> Floats:
        found = objective.residuals(centre.moved(names, logs[:-1]))
        scaled = found.scaled(spread, logs[-1])
        if keep is not None:
            scaled = scaled[keep[found.request]]
        return np.concatenate([scaled, logs / prior])

    # First a walk that does not mind jumps, then slopes to the bottom of the valley that it found.
    origin = np.append(from_.logs_from(names, centre), 0.0)
    walk = minimize(
        lambda logs: cauchy(residuals(logs)),
        origin,
        method="Nelder-Mead",
        options={
            "initial_simplex": np.vstack([origin, *(origin + _STRIDE * np.eye(len(origin)))]),
            "maxfev": most_trials,
            "xatol": 0.005,
            "fatol": 0.05,
        },
    )
    result = least_squares(
        residuals,
        walk.x,
        jac=lambda logs: _slopes(residuals, logs),
        loss="cauchy",
        xtol=2e-3,
        ftol=1e-3,
        max_nfev=_MOST_STEPS,
    )
    return float(result.cost), centre.moved(names, result.x[:-1])


def _slopes(function: Callable[[Floats], Floats], at: Floats) -> Floats:
    columns = []
    for number in range(len(at)):
        shift = np.zeros(len(at))
        shift[number] = _DIFFERENCE
        columns.append((function(at + shift) - function(at - shift)) / (2 * _DIFFERENCE))
    return np.column_stack(columns)
