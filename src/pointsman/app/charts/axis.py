"""Axes of charts: where a value lies, which ticks are drawn, and how they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Show = Callable[[float], str]
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_STEPS = ((1, 2, 5), (1, 3), (1,))


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values laid out on pixels."""

    title: str
    low: float
    high: float
    log: bool = False
    show: Show = "{:g}".format
    wanted_ticks: tuple[float, ...] = ()
    """Draw these instead of round numbers."""

    def at(self, value: float, start: float, length: float) -> float:
        """Its pixel on an axis that begins at `start`; values outside lie on the edge. `low` may be above `high`."""
        low, high, value = (self._scaled(each) for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high != low else 0.5
        return start + length * min(max(share, 0.0), 1.0)

    def holds(self, value: float) -> bool:
        """Whether it lies between the ends."""
        return min(self.low, self.high) <= value <= max(self.low, self.high)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values, at most so many."""
        if self.wanted_ticks:
            every = -(-len(self.wanted_ticks) // (2 * most))
            return list(self.wanted_ticks[::every])
        if self.log and self.high / self.low > 8:
            return self._log_ticks(most)
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = span / most
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * each for each in _STEPS if size * each >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self, most: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for digits in _LOG_STEPS:
            found = [digit * 10.0**decade for decade in decades for digit in digits]
            found = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
            if len(found) <= most:
                return found
        return found[:: -(-len(found) // most)]

    def _scaled(self, value: float) -> float:
        return math.log(max(value, 1e-12)) if self.log else value


def axis_over(
    values: Iterable[float], title: str, *, log: bool = False, from_zero: bool = True, show: Show = "{:g}".format
) -> Axis:
    """An axis that holds all finite values, with a little room above."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not finite:
        return Axis(title, 1.0 if log else 0.0, 10.0 if log else 1.0, log, show)
    low, high = min(finite), max(finite)
    if log:
        return (
            Axis(title, low / 1.1, high * 1.1, log, show) if high > low else Axis(title, low / 2, high * 2, log, show)
        )
    if from_zero and low >= 0:
        return Axis(title, 0.0, high * 1.06 or 1.0, log, show)
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return Axis(title, low - room, high + room, log, show)


def show_ms(value: float) -> str:
    """For example `50 ms`, `2 s`."""
    return f"{value / 1_000:,g} s" if value >= 1_000 else f"{value:g} ms"


def show_seconds(value: float) -> str:
    """Seconds, or whole minutes."""
    return f"{value / 60:g} min" if value and not value % 60 else f"{value:g} s"


def show_share(value: float) -> str:
    """For example `95 %`."""
    return f"{100 * value:.4g} %"


def show_number(value: float) -> str:
    """With thousands separated."""
    return f"{value:,.6g}"
