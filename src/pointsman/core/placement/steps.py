"""Steps: what happens to a table when it passes from a domain to the one around it: pods become whole replicas, roles
that must stay together become one bundle, and what the domain costs is charged."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.core.placement.tables import NO_FIT, Limits, Table, Values, merged


@dataclass(frozen=True, slots=True)
class Layout:
    """The items of a table, the last one (whose counts are values) included."""

    roles: tuple[frozenset[int], ...]
    """Of each item: positions of the roles it is made of."""
    caps: tuple[int, ...]
    """Of each item: how many are wanted."""

    def holding(self, roles: frozenset[int]) -> tuple[int, ...]:
        """Items that are made of any of these roles."""
        return tuple(item for item, mine in enumerate(self.roles) if mine & roles)


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of an item are counted as whole replicas of `size` pods from here on."""

    item: int
    size: int

    def after(self, layout: Layout) -> Layout:
        """The items that come out."""
        caps = list(layout.caps)
        caps[self.item] //= self.size
        return Layout(layout.roles, tuple(caps))

    def apply(self, table: Table, layout: Layout, is_real: bool) -> Table:
        """The table that comes out. In a stand-in for a domain no replica is whole."""
        last = len(layout.roles) - 1
        values = table.values
        if self.item == last:
            counts = values // self.size if is_real else np.zeros_like(values)
            return Table(table.costs, np.where(values < 0, NO_FIT, counts).astype(np.int32))
        cut = [slice(None)] * values.ndim
        cut[self.item + 1] = slice(None, None, self.size) if is_real else slice(0, 1)
        return Table(table.costs, np.ascontiguousarray(values[tuple(cut)]))

    def undo(self, vector: Sequence[int], layout: Layout) -> tuple[int, ...]:
        """Counts before, from counts after."""
        found = list(vector)
        found[self.item] *= self.size
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Bundle:
    """All of some items go together or not at all from here on: one new item, of which there is one."""

    items: tuple[int, ...]

    def after(self, layout: Layout) -> Layout:
        """The items that come out: the others, then the bundle, before the last item where that is another one."""
        rest = [item for item in range(len(layout.roles)) if item not in self.items]
        roles = [layout.roles[item] for item in rest]
        caps = [layout.caps[item] for item in rest]
        at = len(rest) if self._has_last(layout) else len(rest) - 1
        roles.insert(at, frozenset().union(*(layout.roles[item] for item in self.items)))
        caps.insert(at, 1)
        return Layout(tuple(roles), tuple(caps))

    def apply(self, table: Table, layout: Layout, is_real: bool) -> Table:
        """The table that comes out. A stand-in for a domain holds no bundle."""
        values = table.values
        axes = [item for item in self.items if item < len(layout.roles) - 1]
        none = self._taken(values, axes, [0] * len(axes))
        assert none is not None
        full = self._taken(values, axes, [layout.caps[item] for item in axes]) if is_real else None
        if self._has_last(layout):
            if full is not None:
                fits = full >= layout.caps[-1]
                return Table(table.costs, np.where(fits, 1, np.where(none >= 0, 0, NO_FIT)).astype(np.int32))
            return Table(table.costs, np.where(none >= 0, 0, NO_FIT).astype(np.int32))
        if full is None:
            return Table(table.costs, np.ascontiguousarray(none[..., None]))
        return Table(table.costs, np.stack([none, full], axis=-1))

    def undo(self, vector: Sequence[int], layout: Layout) -> tuple[int, ...]:
        """Counts before, from counts after."""
        rest = [item for item in range(len(layout.roles)) if item not in self.items]
        at = len(rest) if self._has_last(layout) else len(rest) - 1
        there = vector[at]
        others = list(vector[:at]) + list(vector[at + 1 :])
        found = [0] * len(layout.roles)
        for item, count in zip(rest, others, strict=True):
            found[item] = count
        for item in self.items:
            found[item] = layout.caps[item] * there
        return tuple(found)

    def _has_last(self, layout: Layout) -> bool:
        return len(layout.roles) - 1 in self.items

    @staticmethod
    def _taken(values: Values, axes: Sequence[int], counts: Sequence[int]) -> Values | None:
        """The values where the items of these axes have these counts; None if a domain never has so many."""
        index: list[int | slice] = [slice(None)] * values.ndim
        for axis, count in zip(axes, counts, strict=True):
            if count >= values.shape[axis + 1]:
                return None
            index[axis + 1] = count
        return values[tuple(index)]


@dataclass(frozen=True, slots=True)
class Charge:
    """What a domain costs as soon as anything is in it, and as soon as an item of a preference is."""

    base: int
    preferences: tuple[tuple[tuple[int, ...], int], ...]
    """Items, and what their presence costs."""

    def apply(self, table: Table, items: int, limits: Limits) -> Table:
        """The table with the costs added."""
        if not self.base and not self.preferences:
            return table
        nothing = np.full((1, *table.values.shape[1:]), NO_FIT, dtype=np.int32)
        nothing[(0,) * nothing.ndim] = 0
        costs, parts = [np.zeros(1, dtype=np.int64)], [nothing]
        for paid in itertools.product((False, True), repeat=len(self.preferences)):
            absent = {item for (own, _), has in zip(self.preferences, paid, strict=True) if not has for item in own}
            price = self.base + sum(cost for (_, cost), has in zip(self.preferences, paid, strict=True) if has)
            costs.append(table.costs + price)
            parts.append(_less(table.values, absent, items))
        return merged(np.concatenate(costs), np.concatenate(parts), limits)

    def of(self, vector: Sequence[int]) -> int:
        """What these counts cost."""
        if not any(vector):
            return 0
        return self.base + sum(cost for own, cost in self.preferences if any(vector[item] for item in own))


def _less(values: Values, absent: set[int], items: int) -> Values:
    """The values where these items are not there."""
    if not absent:
        return values
    found = np.full_like(values, NO_FIT)
    index = tuple(slice(0, 1) if axis - 1 in absent else slice(None) for axis in range(values.ndim))
    found[index] = values[index]
    if items - 1 in absent:
        found = np.minimum(found, 0)
    return found
