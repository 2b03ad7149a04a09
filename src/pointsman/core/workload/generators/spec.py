"""Arrivals and distributions as short texts, for example `gamma:5,3` and `lognormal:1000,0.7,1,8000`."""

from __future__ import annotations

import math
from collections.abc import Callable

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import (
    Arrivals,
    AtOnce,
    Bursts,
    Constant,
    Diurnal,
    Gamma,
    Poisson,
    Stage,
    Staged,
)
from pointsman.core.workload.generators.distributions import (
    Distribution,
    Exponential,
    Fixed,
    Histogram,
    Lognormal,
    Uniform,
)

DISTRIBUTIONS = "NUMBER, uniform:LOW,HIGH, exponential:MEAN, lognormal:MEAN,CV[,LOW,HIGH] or histogram:VALUE=WEIGHT,…"
ARRIVALS = (
    "poisson:PER_S, gamma:PER_S,CV, constant:PER_S, staged:PER_SxSECONDS,…[,pause=SECONDS], "
    "bursts:CALM_PER_S,BURST_PER_S,CALM_S,BURST_S, diurnal:MEAN_PER_S,PEAK_TO_MEAN[,PERIOD_S] or at-once"
)
_PAUSE = "pause="

_NUMERIC_DISTRIBUTIONS: dict[str, tuple[Callable[..., Distribution], tuple[int, ...]]] = {
    "fixed": (Fixed, (1,)),
    "uniform": (Uniform, (2,)),
    "exponential": (Exponential, (1,)),
    "lognormal": (Lognormal, (2, 4)),
}
_NUMERIC_ARRIVALS: dict[str, tuple[Callable[..., Arrivals], tuple[int, ...]]] = {
    "poisson": (Poisson, (1,)),
    "gamma": (Gamma, (2,)),
    "constant": (Constant, (1,)),
    "bursts": (Bursts, (4,)),
    "diurnal": (Diurnal, (2, 3)),
    "at-once": (AtOnce, (0,)),
}


def parse_distribution(text: str) -> Distribution:
    """A distribution. Raises TraceError that says what is expected."""
    kind, _, rest = text.strip().partition(":")
    if not rest and _is_number(kind):
        kind, rest = "fixed", kind
    try:
        if kind == "histogram":
            return _histogram(rest)
        make, counts = _NUMERIC_DISTRIBUTIONS[kind]
        return make(*_numbers(rest, counts))
    except (KeyError, ValueError):
        raise TraceError(f"{text!r} is no distribution; expected {DISTRIBUTIONS}") from None


def parse_arrivals(text: str) -> Arrivals:
    """A process of arrivals; a number alone is a Poisson process. Raises TraceError that says what is expected."""
    kind, _, rest = text.strip().partition(":")
    if not rest and _is_number(kind):
        kind, rest = "poisson", kind
    try:
        if kind == "staged":
            return _staged(rest)
        make, counts = _NUMERIC_ARRIVALS[kind]
        return make(*_numbers(rest, counts))
    except (KeyError, ValueError):
        raise TraceError(f"{text!r} are no arrivals; expected {ARRIVALS}") from None


def _histogram(text: str) -> Histogram:
    weights: dict[float, float] = {}
    for pair in text.split(","):
        value, weight = map(float, pair.split("="))
        if value in weights:
            raise TraceError(f"histogram:{text}: the value {value:g} is given twice")
        weights[value] = weight
    return Histogram(weights)


def _staged(text: str) -> Staged:
    parts = text.split(",")
    pause_s = float(parts.pop().removeprefix(_PAUSE)) if parts[-1].startswith(_PAUSE) else 0.0
    stages = []
    for part in parts:
        per_s, duration_s = part.split("x")
        stages.append(Stage(float(per_s), float(duration_s)))
    return Staged(tuple(stages), pause_s)


def _is_number(text: str) -> bool:
    return text[:1].isdigit() and text[-1:].isdigit()


def _numbers(text: str, counts: tuple[int, ...]) -> list[float]:
    numbers = [float(part) for part in text.split(",")] if text else []
    if len(numbers) not in counts:
        raise ValueError
    return numbers


def describe(distribution: Distribution) -> str:
    """The text that makes an equal one."""
    match distribution:
        case Fixed(value):
            return _short(value)
        case Uniform(low, high):
            return f"uniform:{_short(low)},{_short(high)}"
        case Exponential(mean):
            return f"exponential:{_short(mean)}"
        case Lognormal(mean, cv, low, high):
            bounds = "" if (low, high) == (0.0, math.inf) else f",{_short(low)},{_short(high)}"
            return f"lognormal:{_short(mean)},{_short(cv)}{bounds}"
        case Histogram(weights):
            return "histogram:" + ",".join(f"{_short(value)}={_short(weight)}" for value, weight in weights.items())
    raise TypeError(f"{distribution!r} has no text")


def _short(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(float(value))
