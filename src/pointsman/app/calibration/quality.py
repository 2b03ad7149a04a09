"""Quality: how sure each parameter is, how far off the fit is on requests that it has not seen, where it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.app.calibration.fit import PRIOR_SPREAD, Mask, Solution, refit
from pointsman.app.calibration.measurement import Floats, Measurement
from pointsman.app.calibration.objective import Residuals
from pointsman.app.calibration.parameters import UNITS
from pointsman.core.timing.profile import Validity

FOLDS = 4
_WEAK = 0.5
"""Share of the prior's spread that is left: above it the measurements said little."""
_INSEPARABLE = 0.9
"""Correlation."""
_FEW_REQUESTS = 30
_POOR_TTFT, _POOR_TPOT = 0.25, 0.10
_EFFECTS = {
    "a": "the fixed time of a step",
    "b": "the time a sequence adds",
    "c": "the time of reading context",
    "d": "the time of a prompt token",
    "q": "the attention within long prompts",
    "overhead": "the time outside the engine",
}


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One fitted parameter: within `value/factor` and `value*factor` with 95 % confidence."""

    name: str
    value: float
    factor: float
    unit: str


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute errors in percent: of each first token predicted from the one before it, and of times per token."""

    count: int
    p50: float
    p90: float
    mape: float

    @classmethod
    def of(cls, logs: Floats) -> Errors | None:
        """From logarithms of predicted / measured; None where there are none."""
        if not len(logs):
            return None
        percent = 100 * np.abs(np.expm1(logs))
        p50, p90 = np.percentile(percent, [50, 90]).tolist()
        return cls(len(percent), p50, p90, float(percent.mean()))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of one figure, as measured and as the engine model gives them on its own, in ms."""

    measured: tuple[float, float, float]
    simulated: tuple[float, float, float]

    @property
    def error_percent(self) -> tuple[float, float, float]:
        """Signed errors of mean, P50 and P90."""
        mean, p50, p90 = (100 * (s / m - 1) for s, m in zip(self.simulated, self.measured, strict=True))
        return mean, p50, p90


@dataclass(frozen=True, slots=True)
class Quality:
    """All that is said of a fit."""

    requests: int
    coefficients: tuple[Coefficient, ...]
    ttft: Errors | None
    tpot: Errors | None
    held_out_ttft: Errors | None
    """On requests that the fit did not look at: every fourth part in turn."""
    held_out_tpot: Errors | None
    distributions: dict[str, Distribution]
    """`TTFT`, `TPOT` and `E2E` where all traffic is known."""
    valid: Validity
    ahead: bool
    warnings: tuple[str, ...]


def judge(solution: Solution, measured: Sequence[Measurement], notes: Sequence[str] = ()) -> Quality:
    """Everything; `notes` are warnings that came before the fit."""
    spreads = np.sqrt(np.diag(np.linalg.inv(solution.information)))
    held_out = _held_out(solution)
    residuals = solution.residuals
    valid = _valid(solution, measured)
    return Quality(
        requests=sum(len(one) for one in measured),
        coefficients=tuple(
            Coefficient(name, solution.parameters.value(name), math.exp(1.96 * float(spread)), UNITS[name])
            for name, spread in zip(solution.names, spreads, strict=True)
        ),
        ttft=Errors.of(residuals.ttft[residuals.ttft_weight > 0]),
        tpot=Errors.of(residuals.tpot[_counted(residuals)]),
        held_out_ttft=Errors.of(held_out[0]),
        held_out_tpot=Errors.of(held_out[1]),
        distributions=_distributions(solution, measured),
        valid=valid,
        ahead=solution.ahead,
        warnings=(*notes, *_warnings(solution, measured, valid)),
    )


def _held_out(solution: Solution) -> tuple[Floats, Floats]:
    requests = solution.objective.requests
    ttft, tpot = [], []
    for fold in range(FOLDS):
        first, last = requests * fold // FOLDS, requests * (fold + 1) // FOLDS
        keep = np.ones(requests, dtype=np.bool_)
        keep[first:last] = False
        found: Residuals = solution.objective.residuals(refit(solution, keep))
        ttft.append(found.ttft[~keep[found.ttft_request] & (found.ttft_weight > 0)])
        tpot.append(found.tpot[~keep[found.tpot_request] & _counted(found)])
    return np.concatenate(ttft), np.concatenate(tpot)


def _counted(residuals: Residuals) -> Mask:
    """Times per token that say something: those beside assumed traffic only where there are no others."""
    sure: Mask = residuals.tpot_doubt == 0
    return sure if sure.any() else ~sure


def _distributions(solution: Solution, measured: Sequence[Measurement]) -> dict[str, Distribution]:
    pairs: dict[str, list[tuple[Floats, Floats]]] = {"TTFT": [], "TPOT": [], "E2E": []}
    for one, replayer in zip(measured, solution.objective.replayers, strict=True):
        replayed = replayer.run(solution.parameters, follow=False)
        arrival_ms, gaps = one.arrival_ms, one.output_tokens - 1
        with np.errstate(invalid="ignore"):
            known = (one.first_ms <= one.horizon_ms) & np.isfinite(replayed.first_ms)
            done = known & (one.last_ms <= one.horizon_ms) & np.isfinite(replayed.last_ms)
        known[0] = done[0] = False
        pairs["TTFT"].append(((one.first_ms - arrival_ms)[known], (replayed.first_ms - arrival_ms)[known]))
        pairs["E2E"].append(((one.last_ms - arrival_ms)[done], (replayed.last_ms - arrival_ms)[done]))
        several = done & (gaps > 0)
        pairs["TPOT"].append(
            (
                ((one.last_ms - one.first_ms) / np.maximum(gaps, 1))[several],
                ((replayed.last_ms - replayed.first_ms) / np.maximum(gaps, 1))[several],
            )
        )
    found = {}
    for name, parts in pairs.items():
        seen, simulated = (np.concatenate(side) for side in zip(*parts, strict=True))
        if len(seen):
            found[name] = Distribution(_figures(seen), _figures(simulated))
    return found


def _figures(times_ms: Floats) -> tuple[float, float, float]:
    p50, p90 = np.percentile(times_ms, [50, 90]).tolist()
    return float(times_ms.mean()), p50, p90


def _valid(solution: Solution, measured: Sequence[Measurement]) -> Validity:
    prompts = [request.prompt_tokens for one in measured for request in one.requests]
    outputs = [request.output_tokens for one in measured for request in one.requests]
    most = max(
        replayer.run(solution.parameters, one.horizon_ms).most_sequences
        for one, replayer in zip(measured, solution.objective.replayers, strict=True)
    )
    return Validity((min(prompts), max(prompts)), (min(outputs), max(outputs)), (1, max(1, most)))


def _warnings(solution: Solution, measured: Sequence[Measurement], valid: Validity) -> list[str]:
    found = _identification(solution)
    found.append(
        f"do not use it for prompts over {valid.prompt_tokens[1]:,} tokens or more than {valid.sequences[1]:,} "
        "sequences side by side: nothing of that kind was measured"
    )
    requests = sum(len(one) for one in measured)
    if requests < _FEW_REQUESTS:
        found.append(f"only {requests} requests were measured; 60 make a fit that can be relied on")
    ttft, tpot = solution.spread
    if ttft > _POOR_TTFT or tpot > _POOR_TPOT:
        found.append(
            f"the fit is poor (half of the first tokens are further off than {100 * ttft / 1.48:.0f} %, of the times "
            f"per token {100 * tpot / 1.48:.0f} %): the engine does something that the model does not know, its sizes "
            "(--kv-tokens, --max-num-seqs, --max-batched-tokens) are not those given, or it was not alone"
        )
    if any(one.goes_on for one in measured):
        found.append(
            "later requests shared the engine with these ones and are not known: they are taken to have gone on as "
            "these did, which counts little"
        )
    return found


def _identification(solution: Solution) -> list[str]:
    covariance = np.linalg.inv(solution.information)
    spreads = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(spreads, spreads)
    found = []
    alone = []
    for number, name in enumerate(solution.names):
        if spreads[number] < _WEAK * PRIOR_SPREAD[name]:
            continue
        partners = [
            other
            for place, other in enumerate(solution.names)
            if place != number and abs(correlation[number, place]) > _INSEPARABLE
        ]
        if partners:
            found.append(
                f"{name} could not be separated from {' and '.join(partners)}: what they add together is known for "
                "loads like these only"
            )
        else:
            alone.append(f"{name} ({_EFFECTS[name]})")
    if alone:
        found.append(
            f"the measurements say little of {', '.join(alone)}: it is what similar engines have, scaled to this one"
        )
    return found
