"""How far a policy goes: the smallest fleet, and the largest load, at which it still keeps the SLO."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pointsman.app.advice.laboratory import Case, Laboratory
from pointsman.app.advice.search import Search
from pointsman.app.experiments.comparison import SIGNIFICANCE
from pointsman.app.experiments.measures import Kind
from pointsman.app.experiments.statistics import difference

_A_DOUBLING = 9
_RUNGS = 3 * _A_DOUBLING
LOADS = tuple(float(f"{2 ** (number / _A_DOUBLING):.3g}") for number in range(-_RUNGS, _RUNGS + 1))
"""Loads that are tried, ×0.125 to ×8 in steps of 8 %; the trace as it is among them."""
AS_IT_IS = _RUNGS
"""The number of ×1 in `LOADS`."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The hardest value that kept the SLO, by seed."""

    by_seed: Mapping[int, float | None]
    """None: nothing that was tried did."""
    hardest: float
    """The hardest that could have been tried."""
    easiest: float

    @property
    def value(self) -> float | None:
        """The median of the seeds; None if most of them found nothing."""
        found = sorted(self._score(value) for value in self.by_seed.values())
        if not found:
            return None
        middle = statistics.median_low(found) if self.hardest > self.easiest else statistics.median_high(found)
        return None if math.isinf(middle) else middle

    @property
    def known(self) -> tuple[float, float] | None:
        """Least and most of the seeds; None where one of them found nothing."""
        values = [value for value in self.by_seed.values() if value is not None]
        return (min(values), max(values)) if len(values) == len(self.by_seed) and values else None

    @property
    def at_end(self) -> bool:
        """The hardest that could be tried still held, so the limit lies beyond."""
        return self.value == self.hardest

    def _score(self, value: float | None) -> float:
        if value is not None:
            return value
        return -math.inf if self.hardest > self.easiest else math.inf


@dataclass(slots=True)
class _Contender:
    """One case on a ladder, all of its seeds."""

    cases: Sequence[Case]
    start: int
    searches: dict[int, Search] = field(default_factory=dict)

    def search(self, seed: int) -> Search:
        """Later seeds begin where the first one ended."""
        if seed not in self.searches:
            first = self.searches.get(0)
            start = self.start if first is None else first.held
            self.searches[seed] = Search(len(self.cases), start)
        return self.searches[seed]


def limits(
    laboratory: Laboratory, ladders: Mapping[str, tuple[Sequence[Case], int]], value: Callable[[Case], float]
) -> dict[str, Limit]:
    """The hardest case of each ladder (easiest first, and where to begin) that keeps the SLO, for each seed.

    The first seed shows where; the others look around there.
    """
    contenders = {name: _Contender(cases, start) for name, (cases, start) in ladders.items()}
    _search(laboratory, list(contenders.values()), [0])
    _search(laboratory, list(contenders.values()), range(1, laboratory.question.seeds))
    found = {}
    for name, contender in contenders.items():
        by_seed = {
            seed: value(contender.cases[search.held]) if search.held >= 0 else None
            for seed, search in contender.searches.items()
        }
        found[name] = Limit(by_seed, value(contender.cases[-1]), value(contender.cases[0]))
    return found


def _search(laboratory: Laboratory, contenders: Sequence[_Contender], seeds: Sequence[int]) -> None:
    while True:
        asked = []
        for contender in contenders:
            for seed in seeds:
                rung = contender.search(seed).next_rung()
                if rung is not None:
                    asked.append((contender, seed, rung))
        if not asked:
            return
        laboratory.measure((contender.cases[rung], seed) for contender, seed, rung in asked)
        for contender, seed, rung in asked:
            metrics = laboratory.metrics(contender.cases[rung], seed)
            assert metrics is not None
            contender.search(seed).tell(rung, metrics["goodput_share"] >= laboratory.question.target)


def surely_apart(first: Limit, second: Limit, least: float, kind: Kind) -> bool:
    """Whether the limits differ by `least` or more, and not by chance."""
    seeds = sorted(first.by_seed.keys() & second.by_seed.keys())
    if len(seeds) < 2:
        return False
    apart = difference(_or_easiest(first, seeds), _or_easiest(second, seeds), kind)
    return apart is not None and abs(apart.value) >= least and apart.p < SIGNIFICANCE


def _or_easiest(limit: Limit, seeds: Sequence[int]) -> list[float]:
    """Where nothing held, the easiest that was tried: better than the truth."""
    values = [limit.by_seed[seed] for seed in seeds]
    return [limit.easiest if value is None else value for value in values]
