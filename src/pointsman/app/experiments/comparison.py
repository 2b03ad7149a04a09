"""Policies compared pair by pair on the same seeds, corrected for the number of comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pointsman.app.experiments.measures import MEASURES, Kind
from pointsman.app.experiments.statistics import Difference, difference, holm

Metrics = Mapping[str, float]
"""Value by measure; nan where there is none."""
BySeed = Mapping[int, Metrics]

SIGNIFICANCE = 0.025
"""A difference is called one below this corrected p. Half of what is promised (5 % of experiments with policies that
differ by chance alone): P99s have longer tails than the test assumes, most of all over few seeds."""
MATTERS = {Kind.POSITIVE: 0.01, Kind.SHARE: 0.005, Kind.COUNT: 0.0}
"""Differences below this are not called a difference, however certain: 1 %, or half a percentage point."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of two policies. `difference` is `first` against `second`."""

    first: str
    second: str
    key: str
    difference: Difference
    p_corrected: float
    """Corrected over all comparisons made together (Holm)."""

    @property
    def significant(self) -> bool:
        """Unlikely to be chance, and large enough to matter."""
        large = abs(self.difference.value) >= MATTERS[MEASURES[self.key].kind]
        return large and self.p_corrected < SIGNIFICANCE

    @property
    def first_is_better(self) -> bool:
        """Whether `first` has the better value, significant or not."""
        return (self.difference.value < 0) == MEASURES[self.key].less_is_better

    def seen_from(self, label: str) -> Comparison:
        """The same with `label` as `first`."""
        if label == self.first:
            return self
        if label != self.second:
            raise ValueError(f"{label} is neither {self.first} nor {self.second}")
        return Comparison(self.second, self.first, self.key, _turned(self.difference, self.key), self.p_corrected)


def compare(results: Mapping[str, BySeed], keys: Sequence[str]) -> list[Comparison]:
    """All pairs of policies on all `keys`, on the seeds that both finished. What has no value is left out.

    p values are corrected together: whoever looks at twenty differences finds one that is chance.
    """
    found = list(_pairs(results, keys))
    corrected = holm([apart.p for *_, apart in found])
    return [
        Comparison(first, second, key, apart, p)
        for (first, second, key, apart), p in zip(found, corrected, strict=True)
    ]


def _pairs(results: Mapping[str, BySeed], keys: Sequence[str]) -> Iterator[tuple[str, str, str, Difference]]:
    for first, second in combinations(results, 2):
        seeds = sorted(results[first].keys() & results[second].keys())
        for key in keys:
            ours, theirs = ([results[label][seed][key] for seed in seeds] for label in (first, second))
            apart = difference(ours, theirs, MEASURES[key].kind)
            if apart is not None:
                yield first, second, key, apart


def _turned(apart: Difference, key: str) -> Difference:
    """The difference of the second against the first."""

    def back(value: float) -> float:
        if MEASURES[key].kind is not Kind.POSITIVE:
            return -value
        # A bound of two seeds far apart is -1 after rounding: nothing of the other is left.
        return 1 / (1 + value) - 1 if value > -1 else math.inf

    if apart.low is None or apart.high is None:
        return Difference(back(apart.value), None, None, apart.p)
    return Difference(back(apart.value), back(apart.high), back(apart.low), apart.p)
