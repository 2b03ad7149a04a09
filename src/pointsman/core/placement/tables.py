"""Tables: what a domain can hold, at which cost: all combinations of counts of each item at once.

An *item* is what is counted: pods of a role, whole replicas, or a bundle of roles that must stay together. A table says
for each cost, and each count of all items but the last, how many of the last fit beside them (-1: the others do not).
It is cumulative: a row of a cost holds whatever lower costs can; a cell, whatever fits beside more of the others.
Tables of sibling domains add up by max-plus convolution, which is exact: nothing that fits is missed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pointsman.core.placement.domains import Ints

Values = NDArray[np.int32]
_CHUNK = 2_000_000
"""Cells that one step of a convolution makes: bounds its memory, and the time between two looks at the clock."""
_CELLS_A_READING = 20_000
NO_FIT = -1


class BudgetSpentError(Exception):
    """The time is over; whoever set the limit catches it."""


class Limits:
    """What a search must not exceed: a cost, and a time that is looked at between steps."""

    def __init__(self, most_cost: int, deadline_s: float, clock_s: Callable[[], float]) -> None:
        self.most_cost = most_cost
        self.next_cost: int | None = None
        """The least cost that was cut off because it is above `most_cost`."""
        self._deadline_s = deadline_s
        self._clock_s = clock_s

    def check(self, cells: int = 0) -> None:
        """Before a step that makes so many cells of tables. Raises BudgetSpentError when the time is over.

        The clock is read once for so many cells, so one that counts how often it is read measures work.
        """
        for _ in range(1 + cells // _CELLS_A_READING):
            if self._clock_s() > self._deadline_s:
                raise BudgetSpentError

    def cut(self, costs: Ints) -> None:
        """Remembers the least of the costs that are cut off."""
        least = int(costs.min())
        if self.next_cost is None or least < self.next_cost:
            self.next_cost = least


@dataclass(frozen=True)
class Points:
    """The corners of a table: everything else that fits is less of one of them."""

    label: Ints
    """Row of the cost, ascending."""
    vectors: Ints
    """(points, items): counts, the last item included."""


@dataclass(frozen=True, eq=False)
class Table:
    """`costs` (n,) ascending from 0; `values` (n, *counts of all items but the last)."""

    costs: Ints
    values: Values

    @cached_property
    def points(self) -> Points:
        """Its corners; nothing at all is one of them only where nothing else fits."""
        values = self.values
        corner = values >= 0
        corner[1:] &= values[1:] > values[:-1]
        for axis in range(1, values.ndim):
            ahead = np.full_like(values, NO_FIT - 1)
            source: list[slice] = [slice(None)] * values.ndim
            target = list(source)
            source[axis], target[axis] = slice(1, None), slice(None, -1)
            ahead[tuple(target)] = values[tuple(source)]
            corner &= ahead < values
        where = np.nonzero(corner)
        vectors = np.stack([*where[1:], values[where]], axis=1).astype(np.int64)
        useful = vectors.any(axis=1)
        return Points(where[0][useful].astype(np.int64), vectors[useful])

    @property
    def key(self) -> tuple[bytes, bytes, tuple[int, ...]]:
        """Equal for tables that are equal."""
        return self.costs.tobytes(), self.values.tobytes(), self.values.shape

    def least_cost(self, vector: Iterable[int]) -> int | None:
        """Of these counts; None if they do not fit."""
        *others, last = vector
        if any(count >= size for count, size in zip(others, self.values.shape[1:], strict=True)):
            return None
        column = self.values.reshape(len(self.costs), -1)[:, int(np.ravel_multi_index(others, self.values.shape[1:]))]
        fits = np.flatnonzero(column >= last)
        return int(self.costs[fits[0]]) if len(fits) else None


def empty(items: int) -> Table:
    """Holds nothing of so many items."""
    return Table(np.zeros(1, dtype=np.int64), np.zeros((1,) * items, dtype=np.int32))


def merged(costs: Ints, values: Values, limits: Limits) -> Table:
    """Rows of any order as a table: sorted, cumulative, those that add nothing left out."""
    if int(costs.max()) > limits.most_cost:
        kept = costs <= limits.most_cost
        limits.cut(costs[~kept])
        costs, values = costs[kept], values[kept]
    if len(costs) > 1:
        order = np.argsort(costs, kind="stable")
        costs = costs[order]
        values = np.maximum.accumulate(values[order], axis=0)
        # The last row of each cost has it all; it counts if it has more than the last one of the cost before.
        rows = np.flatnonzero(np.concatenate((costs[1:] != costs[:-1], [True])))
        if len(rows) > 1:
            flat = values.reshape(len(costs), -1)[rows]
            rows = rows[np.concatenate(([True], (flat[1:] != flat[:-1]).any(axis=1)))]
        costs, values = costs[rows], values[rows]
    return Table(costs, np.ascontiguousarray(values))


def added(one: Table, other: Table, caps: tuple[int, ...], limits: Limits) -> Table:
    """What two sibling domains hold together; counts above `caps` (one for each item) are of no use."""
    if len(one.points.label) < len(other.points.label):
        one, other = other, one
    limits.check()
    if one.values.ndim == 1:
        return _added_counts(one, other, caps[0], limits)
    have = one.values.shape[1:]
    shape = tuple(
        min(cap, a - 1 + b - 1) + 1 for cap, a, b in zip(caps[:-1], have, other.values.shape[1:], strict=True)
    )
    cells, rows = math.prod(shape), len(one.costs)
    # One cell more, for what would take more from `one` than it has.
    source = np.full((rows, math.prod(have) + 1), NO_FIT, dtype=np.int32)
    source[:, :-1] = one.values.reshape(rows, -1)
    costs, parts = [one.costs], [_widened(one.values, shape).reshape(rows, -1)]
    points = other.points
    step = max(1, _CHUNK // (rows * cells))
    bounds = np.searchsorted(points.label, np.arange(len(other.costs) + 1)).tolist()
    for label, (first, last) in enumerate(itertools.pairwise(bounds)):
        if first == last:
            continue
        best = np.full((rows, cells), NO_FIT, dtype=np.int32)
        for start in range(first, last, step):
            some = points.vectors[start : min(start + step, last)]
            limits.check(len(some) * rows * cells)
            reached = source[:, _sources(some, shape, have)]
            more = some[:, -1].astype(np.int32)[None, :, None]
            np.maximum(best, np.where(reached < 0, NO_FIT, reached + more).max(axis=1), out=best)
        np.minimum(best, caps[-1], out=best)
        costs.append(one.costs + other.costs[label])
        parts.append(best)
    return merged(np.concatenate(costs), np.concatenate(parts).reshape(-1, *shape), limits)


def _added_counts(one: Table, other: Table, cap: int, limits: Limits) -> Table:
    """The same for one item, where a table is but a count for each cost."""
    costs = (one.costs[:, None] + other.costs[None, :]).ravel()
    values = np.minimum(one.values[:, None] + other.values[None, :], cap).ravel()
    return merged(costs, values, limits)


def _sources(vectors: Ints, shape: tuple[int, ...], one: tuple[int, ...]) -> Ints:
    """(points, cells of the result): the cell of `one` that a point has to be added to."""
    flat = np.zeros((len(vectors),) + (1,) * len(shape), dtype=np.int64)
    beyond = np.zeros(flat.shape, dtype=np.bool_)
    for axis, (size, have) in enumerate(zip(shape, one, strict=True)):
        left = np.maximum(np.arange(size)[None, :] - vectors[:, axis, None], 0)
        spread = left.reshape(len(vectors), *(size if a == axis else 1 for a in range(len(shape))))
        flat = flat * have + spread
        beyond = beyond | (spread >= have)
    found: Ints = np.where(beyond, math.prod(one), flat).reshape(len(vectors), -1)
    return found


def _widened(values: Values, shape: tuple[int, ...]) -> Values:
    if values.shape[1:] == shape:
        return values
    wide = np.full((len(values), *shape), NO_FIT, dtype=np.int32)
    wide[tuple(slice(0, size) for size in values.shape)] = values
    return wide
