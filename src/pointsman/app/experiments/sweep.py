"""Sweeps: the same experiment at several sizes or loads, and the knee, where goodput ends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pointsman.app.experiments.fleet import Size, parse_size
from pointsman.app.experiments.plan import Point
from pointsman.core.model.errors import ConfigError

POINTS = 8
"""Points of a range without a step."""
MOST_POINTS = 1_000
"""Points of any sweep: each has all policies and seeds."""
_RANGE = re.compile(r"([0-9.]+?)\.\.([0-9]*\.?[0-9]+)(?::([0-9]*\.?[0-9]+))?")
AXES = ("workers", "rate", "clients", "roles")


@dataclass(frozen=True, slots=True)
class Sweep:
    """An axis and the values on it."""

    axis: str
    values: tuple[float, ...]
    """In order of size; for `roles` the numbers of `splits`."""
    point: Callable[[float], Point]
    """The experiment at a value."""
    unit: str = ""
    whole: bool = False
    """Only whole numbers lie on the axis."""
    less_is_harder: bool = False
    """The fewer the harder: workers."""

    @property
    def ordered(self) -> bool:
        """Values say how hard it is, so there may be a knee."""
        return self.axis != "roles"

    def points(self) -> tuple[Point, ...]:
        """All points."""
        return tuple(self.point(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class Base:
    """What a sweep starts from."""

    at: Point
    size: Size
    resize: Callable[[Size], Point]
    """The base point with other workers."""
    requests_s: float
    """Requests a second of the workload as it is."""
    mixed_profiles: bool = False
    """Roles have different profiles, so no worker can do both."""


def parse_sweep(text: str, base: Base) -> Sweep:
    """`workers=4..32`, `workers=4,8,16`, `rate=0.5..4`, `rate=2..20/s`, `clients=…`, `roles=1:7,2:6,8`, `roles=all`.

    Raises ConfigError.
    """
    axis, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or axis not in AXES:
        raise ConfigError(f"--sweep {text}: write AXIS=VALUES, such as workers=4..32; axes are {', '.join(AXES)}")
    return _PARSERS[axis](text, values, base)


def _workers(text: str, values: str, base: Base) -> Sweep:
    if not base.size.both:
        raise ConfigError(f"--sweep {text}: workers have roles here; sweep roles=1:7,2:6,… instead")
    numbers = _numbers(text, values, whole=True)

    def point(value: float) -> Point:
        return replace(base.resize(Size(both=int(value))), name=f"workers={value:g}", value=value)

    return Sweep("workers", numbers, point, "workers", whole=True, less_is_harder=True)


def _rate(text: str, values: str, base: Base) -> Sweep:
    if base.at.clients is not None:
        raise ConfigError(f"--sweep {text}: with --clients the rate is what they ask for; sweep clients= instead")
    absolute = values.endswith("/s")
    if absolute and not base.requests_s:
        raise ConfigError(f"--sweep {text}: all requests of this trace come at once, so it has no rate")
    numbers = _numbers(text, values.removesuffix("/s"))

    def point(value: float) -> Point:
        factor = value / base.requests_s if absolute else value * base.at.rate
        return replace(base.at, rate=factor, name=f"rate={value:g}/s" if absolute else f"rate=×{value:g}", value=value)

    return Sweep("rate", numbers, point, "requests a second" if absolute else "× the trace's rate")


def _clients(text: str, values: str, base: Base) -> Sweep:
    numbers = _numbers(text, values, whole=True)

    def point(value: float) -> Point:
        return replace(base.at, clients=int(value), name=f"clients={value:g}", value=value)

    return Sweep("clients", numbers, point, "clients", whole=True)


def _roles(text: str, values: str, base: Base) -> Sweep:
    if values == "all":
        total = base.size.total
        if total < 2:
            raise ConfigError(f"--sweep {text}: one worker can't be split")
        splits = [
            Size(prefill=int(each), decode=total - int(each)) for each in _spread(1, total - 1, POINTS, whole=True)
        ]
        if not base.mixed_profiles:
            splits.append(Size(both=total))
    else:
        splits = [parse_size(part.strip(), f"--sweep {text}:") for part in values.split(",")]

    def point(value: float) -> Point:
        size = splits[int(value)]
        return replace(base.resize(size), name=f"roles={size}", value=value)

    return Sweep("roles", tuple(float(number) for number in range(len(splits))), point, "prefill:decode", whole=True)


_PARSERS: Mapping[str, Callable[[str, str, Base], Sweep]] = {
    "workers": _workers,
    "rate": _rate,
    "clients": _clients,
    "roles": _roles,
}


def _numbers(text: str, values: str, *, whole: bool = False) -> tuple[float, ...]:
    """`a..b`, `a..b:step` or a list. Raises ConfigError."""
    wrong = ConfigError(
        f"--sweep {text}: {values!r} is no range; write 4..32, 4..32:4 or 4,8,16"
        + (" (whole numbers)" if whole else "")
    )
    match = _RANGE.fullmatch(values)
    try:
        if match is None:
            found = [float(part) for part in values.split(",")]
        else:
            low, high = float(match[1]), float(match[2])
            if match[3] is None:
                found = _spread(low, high, POINTS, whole=whole)
            else:
                step = float(match[3])
                if not step:
                    raise wrong
                if (high - low) / step > MOST_POINTS:
                    raise ConfigError(f"--sweep {text}: those are more than {MOST_POINTS:,} points; take longer steps")
                found = [low + number * step for number in range(math.floor((high - low) / step + 1e-9) + 1)]
    except ValueError:
        raise wrong from None
    if not found or not all(0 < value < math.inf for value in found) or (whole and any(value % 1 for value in found)):
        raise wrong
    return tuple(sorted(set(found)))


def _spread(low: float, high: float, most: int, *, whole: bool) -> list[float]:
    """Up to `most` values from `low` to `high`, evenly."""
    if high <= low:
        return [low] if high == low else []
    count = min(most, int(high - low) + 1) if whole else most
    values = [low + (high - low) * number / (count - 1) for number in range(count)]
    return sorted({float(round(value)) if whole else float(f"{value:.4g}") for value in values})


@dataclass(frozen=True, slots=True)
class Knee:
    """The hardest value at which a policy still does well."""

    value: float | None
    """None: it does not at any value tried."""
    beyond: float | None
    """The next harder value tried, at which it does not; None: it does everywhere."""


def knee(sweep: Sweep, shares: Mapping[float, float], target: float) -> Knee:
    """From goodput shares by value: the hardest value that reaches `target`, as do all easier ones that were tried."""
    last: float | None = None
    for value in sorted(shares, reverse=sweep.less_is_harder):
        if not shares[value] >= target:
            return Knee(last, value)
        last = value
    return Knee(last, None)


def between(sweep: Sweep, found: Sequence[Knee]) -> list[float]:
    """Values to try next to know knees more exactly; none where nothing lies between."""
    middles = set()
    for each in found:
        if each.value is None or each.beyond is None:
            continue
        middle = (each.value + each.beyond) / 2
        middle = float(math.floor(middle)) if sweep.whole else float(f"{middle:.3g}")
        if min(each.value, each.beyond) < middle < max(each.value, each.beyond):
            middles.add(middle)
    return sorted(middles)
