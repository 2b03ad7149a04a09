"""When requests or sessions come: points in time, ms from the start, never going back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, takewhile
from typing import Protocol

import numpy as np

from pointsman.core.model.errors import TraceError

_MS = 1000.0
_DRAWN_AT_ONCE = 256
MOST_ARRIVALS = 10_000_000
"""More do not fit into the memory that computers usually have."""


class Arrivals(Protocol):
    """A process in time."""

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """The points, for ever unless the process ends by itself."""
        ...


def arrival_times(
    arrivals: Arrivals, rng: np.random.Generator, most: int | None = None, duration_s: float | None = None
) -> list[float]:
    """The points up to `most` of them and before `duration_s`; a process without an end needs one of the two.

    Raises TraceError without an end, for a duration that is none, and for more than MOST_ARRIVALS.
    """
    if most is None and duration_s is None and not isinstance(arrivals, Staged):
        raise TraceError("arrivals go on for ever: say how many requests, or for how long")
    if duration_s is not None and not 0 <= duration_s < math.inf:
        raise TraceError(f"arrivals for {duration_s:g} s can't be")
    times = arrivals.times_ms(rng)
    if duration_s is not None:
        end_ms = duration_s * _MS
        times = takewhile(lambda at_ms: at_ms < end_ms, times)
    found = list(islice(times, MOST_ARRIVALS + 1 if most is None else min(most, MOST_ARRIVALS + 1)))
    if len(found) > MOST_ARRIVALS:
        raise TraceError(
            f"more than {MOST_ARRIVALS:,} arrivals: say how many, or ask for a lower rate or a shorter time"
        )
    return found


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent of one another."""

    per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.per_s)

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals."""
        return _summed(lambda: rng.exponential(_MS / self.per_s, _DRAWN_AT_ONCE))


@dataclass(frozen=True, slots=True)
class Gamma:
    """Times between arrivals are Gamma distributed; cv 1 is Poisson, above it they come in clumps."""

    per_s: float
    cv: float

    def __post_init__(self) -> None:
        _check_rate(self.per_s)
        if not 0 < self.cv < math.inf:
            raise TraceError(f"arrivals with a coefficient of variation of {self.cv}; above 0 is expected")

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals. Shape 1/cv² and scale cv²/rate give that mean and that CV."""
        shape = self.cv**-2
        return _summed(lambda: rng.gamma(shape, _MS / self.per_s / shape, _DRAWN_AT_ONCE))


@dataclass(frozen=True, slots=True)
class Constant:
    """Equal distances."""

    per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.per_s)

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals."""
        return (position * _MS / self.per_s for position in count())


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All at the start: what a closed loop of clients takes one after the other."""

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals."""
        return (0.0 for _ in count())


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of time with one rate."""

    per_s: float
    duration_s: float

    def __post_init__(self) -> None:
        _check_rate(self.per_s, 0.0)
        if not 0 < self.duration_s < math.inf:
            raise TraceError(f"a stage of {self.duration_s} s")


@dataclass(frozen=True, slots=True)
class Staged:
    """Poisson arrivals at one rate after the other, with a pause in which a fleet can finish what it has."""

    stages: tuple[Stage, ...]
    pause_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.pause_s < math.inf:
            raise TraceError(f"a pause of {self.pause_s:g} s between stages")

    @property
    def starts_ms(self) -> tuple[float, ...]:
        """When each stage starts."""
        starts, at_s = [], 0.0
        for stage in self.stages:
            starts.append(at_s * _MS)
            at_s += stage.duration_s + self.pause_s
        return tuple(starts)

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals; ends with the last stage."""
        for stage, start_ms in zip(self.stages, self.starts_ms, strict=True):
            if stage.per_s:
                for at_ms in arrival_times(Poisson(stage.per_s), rng, duration_s=stage.duration_s):
                    yield start_ms + at_ms


@dataclass(frozen=True, slots=True)
class Bursts:
    """Two rates that take turns for exponentially distributed times: a Poisson process modulated by two states."""

    calm_per_s: float
    burst_per_s: float
    calm_s: float
    burst_s: float

    def __post_init__(self) -> None:
        _check_rate(self.calm_per_s, 0.0)
        _check_rate(self.burst_per_s)
        if not (0 < self.calm_s < math.inf and 0 < self.burst_s < math.inf):
            raise TraceError(f"bursts of {self.burst_s} s after {self.calm_s} s of calm")

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals. Starts calm."""
        start_ms = 0.0
        while True:
            for per_s, mean_s in ((self.calm_per_s, self.calm_s), (self.burst_per_s, self.burst_s)):
                length_s = float(rng.exponential(mean_s))
                if per_s and length_s:
                    for at_ms in arrival_times(Poisson(per_s), rng, duration_s=length_s):
                        yield start_ms + at_ms
                start_ms += length_s * _MS


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A Poisson process whose rate swings like a cosine: least at the start, most half a period later."""

    mean_per_s: float
    peak_to_mean: float
    """From 1 (no swing) to 2 (nobody comes at the least)."""
    period_s: float = 86_400.0

    def __post_init__(self) -> None:
        _check_rate(self.mean_per_s)
        if not 1 <= self.peak_to_mean <= 2:
            raise TraceError(f"a peak of {self.peak_to_mean} times the mean; 1 to 2 is expected")
        if not 0 < self.period_s < math.inf:
            raise TraceError(f"a period of {self.period_s} s")

    def rate_per_s(self, at_ms: float) -> float:
        """The rate at one time."""
        swing = math.cos(2 * math.pi * at_ms / (self.period_s * _MS))
        return self.mean_per_s * (1 - (self.peak_to_mean - 1) * swing)

    def times_ms(self, rng: np.random.Generator) -> Iterator[float]:
        """See Arrivals. Points at the peak rate of which each is kept with the share that its time's rate is."""
        peak_per_s = self.mean_per_s * self.peak_to_mean
        for at_ms in Poisson(peak_per_s).times_ms(rng):
            if rng.random() * peak_per_s < self.rate_per_s(at_ms):
                yield at_ms


class _Draw(Protocol):
    def __call__(self) -> np.ndarray: ...


def _summed(draw: _Draw) -> Iterator[float]:
    at_ms = 0.0
    while True:
        for gap_ms in draw().tolist():
            at_ms += gap_ms
            yield at_ms


def _check_rate(per_s: float, least: float | None = None) -> None:
    if not (0 < per_s < math.inf or per_s == least):
        raise TraceError(f"arrivals at a rate of {per_s}/s; above 0 is expected")
