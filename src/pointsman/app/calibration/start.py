"""Start: a first guess of the parameters, from how fast known engines are relative to themselves.

Between engines, speed differs by a hundred and what a sequence or its context costs relative to a step by little. So
known engines are tried at the speed of decoding and of prefill that fits the measurements best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from pointsman.app.calibration.objective import Objective, Residuals, soft_l1
from pointsman.app.calibration.parameters import Floats, Parameters
from pointsman.core.timing.profiles import profile_from
from pointsman.core.timing.step import StepCoefficients

KNOWN = (
    "estimate:gpu=h100,model=llama-8b",
    "estimate:gpu=h100,model=llama-70b,precision=fp8,tp=4",
    "h200/qwen3-235b-tp4",
)
"""Engines whose proportions are tried; all of them have all effects."""
LONG_PROMPT_TOKENS = 8_000
"""From there on the attention of a prompt to itself is more than a tenth of its time, so it is fitted."""
_SQUARE_SHARE = 1.2e-5
"""q/d where both were measured (gpt-oss-120b on H200: .0248 ms a token, 3.08e-7 ms a square)."""
_COARSE = (0.3, 0.1)
"""Spread of the logarithms of TTFT and TPOT around a first guess."""
_MOST_TRIALS = 30


def known_steps(start: StepCoefficients | None) -> tuple[StepCoefficients, ...]:
    """Proportions to try: those of the engine that is expected, or of all known ones."""
    if start is not None:
        return (start,)
    return tuple(profile_from(name).step for name in KNOWN)


def first_guesses(
    objective: Objective, steps: Sequence[StepCoefficients], *, overhead_ms: float, long_prompts: bool
) -> tuple[Parameters, ...]:
    """Each of `steps` with decoding and prefill made slower or faster, best first. `long_prompts`: with squares."""
    found = [_scaled(objective, Parameters(_whole(step, long_prompts), overhead_ms)) for step in steps]
    return tuple(parameters for _, parameters in sorted(found, key=lambda pair: pair[0]))


def _whole(step: StepCoefficients, long_prompts: bool) -> StepCoefficients:
    # A coefficient of 0 could never grow: logarithms are fitted.
    a, d = max(step.a_ms, 1e-3), max(step.d_ms_per_prefill_token, 1e-5)
    q = (step.q_ms_per_square_token or d * _SQUARE_SHARE) if long_prompts else 0.0
    return StepCoefficients(
        a,
        step.b_ms_per_sequence or a / 500,
        step.c_ms_per_1000_context_tokens or a / 200,
        d,
        q,
    )


def _scaled(objective: Objective, centre: Parameters) -> tuple[float, Parameters]:
    names = ("a", "b", "c", "d", "q")

    def moved(logs: Floats) -> Parameters:
        decode, prefill = logs.tolist()
        return centre.moved(names, np.array([decode, decode, decode, prefill, prefill]))

    def cost(logs: Floats) -> float:
        return coarse_cost(objective.residuals(moved(logs)))

    # Speeds differ by orders of magnitude: a walk needs a start in the right one.
    decodes = [math.log(4.0) * step for step in (-2, -1, 0, 1, 2, 3)]
    prefills = [math.log(3.0) * step for step in (-2, -1, 0, 1, 2, 3)]
    decode = min(decodes, key=lambda scale: cost(np.array([scale, scale])))
    prefill = min(prefills, key=lambda scale: cost(np.array([decode, decode + scale])))
    origin = np.array([decode, decode + prefill])
    simplex = np.vstack([origin, origin + np.array([0.5, 0.0]), origin + np.array([0.0, 0.5])])
    found = minimize(
        cost,
        origin,
        method="Nelder-Mead",
        options={"initial_simplex": simplex, "maxfev": _MOST_TRIALS, "xatol": 0.02, "fatol": 0.01},
    )
    return float(found.fun), moved(found.x)


def coarse_cost(residuals: Residuals) -> float:
    """How bad a guess is, before anything is known of the spread of the measurements."""
    return soft_l1(residuals.scaled(_COARSE))
