"""LinkRows: the estimates of links as arrays, for many pairs of machines at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.timing.link_times import SIZE_CLASSES_BYTES, LinkEstimate, LinkTimes
from pointsman.core.timing.spread import mean_excess

_UNASKED = -1
_FIRST_PLACES = 16
_BOUNDS_BYTES = np.array(SIZE_CLASSES_BYTES, dtype=np.float64)


_MOST_BLOCKS = 64
"""Sets of machines whose pairs are kept; a fleet has one a model."""


class LinkBlock(NamedTuple):
    """All pairs of some machines with some others."""

    floor_ms: NDArray[np.float64]
    ms_per_byte: tuple[NDArray[np.float64], ...]
    """By class of size."""
    excess: NDArray[np.float64]
    """By how much transfers exceed the predicted time on the average, as a share of it."""

    def of(self, sources: NDArray[np.intp]) -> LinkBlock:
        """Those from some of the sources."""
        return LinkBlock(self.floor_ms[sources], tuple(one[sources] for one in self.ms_per_byte), self.excess[sources])

    def moving_ms(self, size_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of one transfer a pair that has the link for itself, without its floor."""
        classes = np.searchsorted(_BOUNDS_BYTES, size_bytes)
        took: NDArray[np.float64] = np.choose(classes, self.ms_per_byte)
        took *= size_bytes
        return took


class LinkRows:
    """One snapshot of links. A pair is looked up when it is first asked for, and kept as the number of its estimate."""

    def __init__(self, links: LinkTimes) -> None:
        self._links = links
        self._place_of: NDArray[np.int32] = np.full(_FIRST_PLACES, _UNASKED, dtype=np.int32)
        """By number of a machine + 1, as -1 is an unknown one: its place in `_number_of`."""
        self._nodes: list[int] = []
        self._number_of: NDArray[np.int32] = np.full((_FIRST_PLACES, _FIRST_PLACES), _UNASKED, dtype=np.int32)
        self._estimates: list[LinkEstimate] = []
        self._known: dict[LinkEstimate, int] = {}
        self._floor_ms: NDArray[np.float64] = np.zeros(0)
        self._ms_per_byte: NDArray[np.float64] = np.zeros((0, 4))
        self._spread: NDArray[np.float64] = np.zeros(0)
        self._table: NDArray[np.float64] = np.zeros((6, 0))
        """Rows: floor, mean over median less one, and one for each class of size."""
        self._blocks: dict[bytes, LinkBlock] = {}
        self._fastest: dict[bytes, float] = {}

    def of(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.int32]:
        """Numbers of the estimates between machines; the two arrays are broadcast."""
        rows, columns = self._places(sources), self._places(targets)
        numbers: NDArray[np.int32] = self._number_of[rows, columns]
        if int(numbers.min(initial=0)) == _UNASKED:
            pairs = {(int(s), int(t)) for s, t in np.broadcast(rows, columns)}
            for one, other in pairs:
                if self._number_of[one, other] == _UNASKED:
                    self._number_of[one, other] = self._number(self._links.of(self._nodes[one], self._nodes[other]))
            if len(self._estimates) > len(self._floor_ms):
                self._renew()
            numbers = self._number_of[rows, columns]
        return numbers

    def block(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> LinkBlock:
        """All pairs of these machines."""
        numbers = self.of(sources[:, None], targets)
        floor_ms, excess, *ms_per_byte = self._table.take(numbers, axis=1)
        return LinkBlock(floor_ms, tuple(ms_per_byte), excess)

    def among(self, nodes: NDArray[np.int64]) -> LinkBlock:
        """All pairs among these machines, kept for those who ask again."""
        key = nodes.tobytes()
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            block = self._blocks[key] = self.block(nodes, nodes)
        return block

    def fastest_ms_per_byte(self, nodes: NDArray[np.int64]) -> float:
        """Of the best link among these machines."""
        key = nodes.tobytes()
        fastest = self._fastest.get(key)
        if fastest is None:
            if len(self._fastest) >= _MOST_BLOCKS:
                self._fastest.clear()
            fastest = self._fastest[key] = min(float(one.min()) for one in self.among(nodes).ms_per_byte)
        return fastest

    def ms(
        self, numbers: NDArray[np.int32], size_bytes: NDArray[np.float64], under_way: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """As LinkEstimate.ms."""
        classes = np.searchsorted(_BOUNDS_BYTES, size_bytes)
        took: NDArray[np.float64] = (
            self._floor_ms[numbers] + size_bytes * (1 + under_way) * (self._ms_per_byte[numbers, classes])
        )
        return took

    def floor_ms(self, numbers: NDArray[np.int32]) -> NDArray[np.float64]:
        """Of each transfer, whatever its size."""
        floor: NDArray[np.float64] = self._floor_ms[numbers]
        return floor

    def spread(self, numbers: NDArray[np.int32]) -> NDArray[np.float64]:
        """P90 of actual over predicted time."""
        spread: NDArray[np.float64] = self._spread[numbers]
        return spread

    @property
    def usual_bytes_per_ms(self) -> float:
        """Of large transfers on a link of which nothing is known."""
        return self._links.otherwise.bytes_per_ms[-1]

    def _places(self, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        most = int(nodes.max(initial=-1)) + 2
        if most > len(self._place_of):
            more = np.full(2 * most, _UNASKED, dtype=np.int32)
            more[: len(self._place_of)] = self._place_of
            self._place_of = more
        places: NDArray[np.int32] = self._place_of[nodes + 1]
        if int(places.min(initial=0)) == _UNASKED:
            for node in sorted(set(nodes.ravel().tolist())):
                if self._place_of[node + 1] == _UNASKED:
                    self._place_of[node + 1] = len(self._nodes)
                    self._nodes.append(node)
            count = len(self._number_of)
            if len(self._nodes) > count:
                grown = np.full((2 * len(self._nodes), 2 * len(self._nodes)), _UNASKED, dtype=np.int32)
                grown[:count, :count] = self._number_of
                self._number_of = grown
            places = self._place_of[nodes + 1]
        return places

    def _number(self, estimate: LinkEstimate) -> int:
        number = self._known.get(estimate)
        if number is None:
            number = self._known[estimate] = len(self._estimates)
            self._estimates.append(estimate)
        return number

    def _renew(self) -> None:
        self._floor_ms = np.array([one.floor_ms for one in self._estimates])
        self._ms_per_byte = 1 / np.array([one.bytes_per_ms for one in self._estimates])
        self._spread = np.array([one.spread for one in self._estimates])
        self._table = np.vstack((self._floor_ms, mean_excess(self._spread), self._ms_per_byte.T))
