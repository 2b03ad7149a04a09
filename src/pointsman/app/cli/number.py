"""Numbers on the command line: finite, in a range that is told, in a unit that is told."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number of `unit` from `low` to `high`; without `low` itself if `above`, and 0 as well if `or_zero`.

    Refuses what float() takes and nobody means: nan, inf, and 1e-9 hours.
    """

    name = "number"

    def __init__(self, low: float, high: float, unit: str, *, above: bool = False, or_zero: bool = False) -> None:
        super().__init__(low, high, min_open=above)
        least = f"above {low:,.10g}" if above else f"from {low:,.10g}"
        self.expected = f"{unit} {least} to {high:,.10g}" + (", or 0" if or_zero else "")
        self._or_zero = or_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Ends the call with a message that names the option and what is allowed."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value}: expected {self.expected}", param, ctx)
        assert self.min is not None and self.max is not None  # noqa: PT018
        is_enough = number > self.min if self.min_open else number >= self.min
        if not (math.isfinite(number) and is_enough and number <= self.max) and not (self._or_zero and number == 0):
            self.fail(f"{value}: expected {self.expected}", param, ctx)
        return number

    def _describe_range(self) -> str:
        return self.expected
