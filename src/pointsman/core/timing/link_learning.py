"""LinkLearner: what transfers and probes teach of the links between machines."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from pointsman.core.timing.link_fit import LinkFit
from pointsman.core.timing.link_priors import (
    HOPE,
    USUAL_PRIORS,
    LinkPriors,
    Place,
    PlacePriors,
    estimate_of,
    hoped,
)
from pointsman.core.timing.link_times import LinkEstimate, LinkTimes

MOST_PAIRS = 16_384
"""Directions that are learned; those that nothing was heard of for longest are forgotten first."""

REST_MS = 600_000.0
"""Without a transfer for so long, a link is taken to be `_HOPE_A_REST` times as fast as it was seen to be, after twice
as long the square of that, and so on: what kept KV away may be over, and only a transfer shows it."""
_HOPE_A_REST = 1.25
_MOST_RESTS = 12
_LOOK_MS = 60_000.0
"""Between two looks at which links rest."""


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One direction of which something was seen."""

    source: str
    target: str
    estimate: LinkEstimate


class LinkLearner:
    """Machines have names outside and numbers in views; both are kept until they are forgotten."""

    def __init__(self, priors: LinkPriors = USUAL_PRIORS) -> None:
        self._priors = priors
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = 0
        self._places: dict[int, Place] = {}
        self._fits: OrderedDict[tuple[int, int], LinkFit] = OrderedDict()
        self._estimates: dict[tuple[int, int], LinkEstimate] = {}
        """As they were at the last look."""
        self._changed: set[tuple[int, int]] = set()
        self._used_ms: dict[tuple[int, int], float] = {}
        """When a transfer was last seen, as of the look before it."""
        self._rests: dict[tuple[int, int], int] = {}
        """Of those that rest: for how many times REST_MS."""
        self._now_ms = self._looked_ms = -math.inf
        self._times: LinkTimes | None = None

    def number(self, node: str) -> int:
        """Of a machine, from 0 on; a new one gets the next, and no number is given twice."""
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = self._next
            self._names[number] = node
            self._next += 1
        return number

    def place(self, node: str, place: Place) -> None:
        """Where a machine is, from itself to far; what was learned of its links stays."""
        number = self.number(node)
        if self._places.get(number) != place:
            self._places[number] = place
            self._times = None

    def forget(self, node: str) -> None:
        """A machine is gone for good."""
        number = self._numbers.pop(node, None)
        if number is None:
            return
        del self._names[number]
        self._places.pop(number, None)
        for pair in [pair for pair in self._fits if number in pair]:
            self._drop(pair)
        self._times = None

    def observe(self, source: str, target: str, size_bytes: float, took_ms: float, under_way: int = 0) -> bool:
        """One transfer, which so many others shared the link with; False: figures that nothing can be learned from."""
        usable = math.isfinite(size_bytes) and size_bytes >= 0 and math.isfinite(took_ms) and took_ms > 0
        if not usable or under_way < 0:
            return False
        pair = (self.number(source), self.number(target))
        fit = self._fits.get(pair)
        if fit is None:
            fit = self._fits[pair] = LinkFit(self._by_place().believed(*pair))
            if len(self._fits) > MOST_PAIRS:
                self._drop(next(iter(self._fits)))
        fit.observe(size_bytes, took_ms, under_way)
        self._fits.move_to_end(pair)
        self._used_ms[pair] = self._now_ms
        self._rests.pop(pair, None)
        self._changed.add(pair)
        self._times = None
        return True

    def look(self, now_ms: float) -> None:
        """Time passes: links that nothing is moved over are hoped to be faster than they were."""
        self._now_ms = now_ms
        if now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        for pair, used_ms in self._used_ms.items():
            if used_ms == -math.inf:
                self._used_ms[pair] = now_ms
                continue
            rests = min(_MOST_RESTS, int((now_ms - used_ms) / REST_MS))
            if rests != self._rests.get(pair, 0):
                self._rests[pair] = rests
                self._changed.add(pair)
                self._times = None

    def prior(self, source_place: Place, target_place: Place) -> LinkEstimate:
        """What is thought of a link between two places before anything is seen."""
        return PlacePriors(self._priors, {0: source_place, 1: target_place}).of(0, 1)

    def times(self) -> LinkTimes:
        """What is known now; the same object until something changes."""
        if self._times is None:
            for pair in self._changed:
                self._estimates[pair] = self._estimate(pair)
            self._changed.clear()
            places = PlacePriors(self._priors, dict(self._places))
            self._times = LinkTimes(dict(self._estimates), hoped(estimate_of(self._priors.network), HOPE), places)
        return self._times

    def rows(self) -> tuple[LinkRow, ...]:
        """Directions of which something was seen, by names."""
        names = self._names
        rows = [LinkRow(names[pair[0]], names[pair[1]], self._estimate(pair)) for pair in self._fits]
        return tuple(sorted(rows, key=lambda row: (row.source, row.target)))

    def _estimate(self, pair: tuple[int, int]) -> LinkEstimate:
        seen, rests = self._fits[pair].estimate, self._rests.get(pair, 0)
        return hoped(seen, _HOPE_A_REST**rests) if rests else seen

    def _drop(self, pair: tuple[int, int]) -> None:
        del self._fits[pair]
        self._estimates.pop(pair, None)
        self._changed.discard(pair)
        self._rests.pop(pair, None)
        self._used_ms.pop(pair, None)

    def _by_place(self) -> PlacePriors:
        return PlacePriors(self._priors, self._places)
