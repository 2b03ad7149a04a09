"""Search: the tables of all domains from nodes up to the cluster, and the way back down from what is wanted to nodes.

Every split of the gang over sibling domains is in the tables, so no choice is final before all are known; domains whose
children are alike are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from pointsman.core.placement.domains import Ints
from pointsman.core.placement.node_tables import NodeTables
from pointsman.core.placement.problem import LevelRules, Problem
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.steps import Charge, Layout
from pointsman.core.placement.tables import Limits, Table, added, empty

Vector = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Sum:
    """Domains put together: one child by its class, or two sums."""

    table: Table
    child: int = -1
    parts: tuple[_Sum, _Sum] | None = None


@dataclass(frozen=True, eq=False)
class _Form:
    """Domains that are alike inside."""

    inside: _Sum | None
    charge: Charge
    table: Table


@dataclass
class _Floor:
    """What is known of one level."""

    class_of: Ints
    """Of each domain; domains of one class have equal tables, whatever they are inside."""
    form_of: Ints
    tables: list[Table]
    forms: list[_Form] = field(default_factory=list)


class Search:
    """Tables for one problem within limits. `charged` False leaves out all costs: only whether it fits is asked."""

    def __init__(
        self, state: ClusterState, problem: Problem, nodes: NodeTables, limits: Limits, *, charged: bool = True
    ) -> None:
        self._state = state
        self._problem = problem
        self._nodes = nodes
        self._limits = limits
        self._charged = charged
        self._free = state.gpu_free_milli
        self._floors: list[_Floor] = [self._node_floor()]
        self._blocks: dict[tuple[int, int, int], _Sum] = {}
        levels = len(problem.levels)
        for level in range(1, levels + 1):
            self._floors.append(self._floor(level, problem.levels[level] if level < levels else None))
        self.root: Table = self.table_of(levels, 0)

    def least_cost(self) -> int | None:
        """Of placing all that is wanted; None: it does not fit, or costs more than the limit."""
        cost = self.root.least_cost(self._problem.last.caps)
        return None if cost is None else cost + self._problem.offset

    def counts(self) -> Ints:
        """(roles, nodes): pods of each role on each node, of a placement that costs least."""
        found = np.zeros((len(self._problem.groups), len(self._state.nodes)), dtype=np.int64)
        cost = self.root.least_cost(self._problem.last.caps)
        assert cost is not None
        order = np.array(self._problem.order)
        for node, vector in self._expanded(len(self._problem.levels), 0, cost, self._problem.last.caps):
            found[order, node] = vector
        return found

    def table_of(self, level: int, domain: int) -> Table:
        """What a domain holds, bundles of its level made and its own costs added."""
        floor = self._floors[level]
        return floor.tables[int(floor.class_of[domain])]

    def _node_floor(self) -> _Floor:
        rules = self._problem.levels[0]
        paid = self._paid(rules, len(self._state.nodes))
        key = self._nodes.class_of * (int(paid.max(initial=0)) + 1) + paid
        classes, form_of = np.unique(key, return_inverse=True)
        floor = _Floor(np.empty(0, dtype=np.int64), form_of.astype(np.int64), [])
        known: dict[object, int] = {}
        class_of_form = []
        for value in classes.tolist():
            own, bits = divmod(value, int(paid.max(initial=0)) + 1)
            form = self._form(_Sum(self._nodes.tables[own]), rules, True, bits)
            class_of_form.append(_classed(form.table, floor.tables, known))
            floor.forms.append(form)
        floor.class_of = np.array(class_of_form, dtype=np.int64)[floor.form_of]
        return floor

    def _floor(self, level: int, rules: LevelRules | None) -> _Floor:
        below = self._floors[level - 1]
        domains = len(self._state.domains.is_real[level])
        real = self._state.domains.is_real[level]
        paid = self._paid(rules, domains)
        parent = self._state.domains.parent[level - 1]
        useful = np.array([len(table.points.label) > 0 for table in below.tables], dtype=np.bool_)
        children = np.flatnonzero(useful[below.class_of])
        children = children[np.lexsort((below.class_of[children], parent[children]))]
        starts = np.searchsorted(parent[children], np.arange(domains + 1))
        classes = below.class_of[children]
        # Form 0 is that of domains with nothing in them, mostly the greater part.
        floor = _Floor(np.zeros(domains, dtype=np.int64), np.zeros(domains, dtype=np.int64), [])
        floor.forms.append(self._form(None, rules, True, 0))
        floor.tables.append(floor.forms[0].table)
        known: dict[object, int] = {floor.tables[0].key: 0}
        alike: dict[object, int] = {}
        class_of_form = [0]
        for domain in np.flatnonzero(np.diff(starts)).tolist():
            mine = classes[starts[domain] : starts[domain + 1]]
            key = (mine.tobytes(), bool(real[domain]), int(paid[domain]))
            found = alike.get(key)
            if found is None:
                found = alike[key] = len(floor.forms)
                inside = self._known_sum(level, mine, below.tables)
                form = self._form(inside, rules, bool(real[domain]), int(paid[domain]))
                floor.forms.append(form)
                class_of_form.append(_classed(form.table, floor.tables, known))
            floor.form_of[domain] = found
            floor.class_of[domain] = class_of_form[found]
        return floor

    def _paid(self, rules: LevelRules | None, domains: int) -> Ints:
        """By domain, a number that says for which charges it is paid already."""
        found = np.zeros(domains, dtype=np.int64)
        if rules is not None and self._charged:
            found += rules.present * bool(rules.cost)
            for position, preference in enumerate(rules.preferences, start=1):
                found += preference.present.astype(np.int64) << position
        return found

    def _form(self, inside: _Sum | None, rules: LevelRules | None, is_real: bool, paid: int) -> _Form:
        items = len(self._problem.last.roles if rules is None else rules.before.roles)
        table = empty(items) if inside is None else inside.table
        if rules is None:
            return _Form(inside, Charge(0, ()), table)
        layout = rules.before
        for step in rules.steps:
            table = step.apply(table, layout, is_real)
            layout = step.after(layout)
        charge = Charge(0, ())
        if self._charged:
            base = 0 if paid & 1 else rules.cost
            preferences = tuple(
                (layout.holding(preference.roles), preference.cost)
                for position, preference in enumerate(rules.preferences, start=1)
                if not paid >> position & 1
            )
            charge = Charge(base, preferences)
            table = charge.apply(table, len(layout.roles), self._limits)
        return _Form(inside, charge, table)

    def _known_sum(self, level: int, classes: Ints, tables: list[Table]) -> _Sum | None:
        """Sums of nodes are the same in every search where nodes cost nothing."""
        if level > 1 or any(table.costs[-1] for table in tables):
            return self._sum(level, classes.tolist(), tables)
        key = (self._charged, classes.tobytes())
        found = self._nodes.sums.get(key, self)
        if found is self:
            found = self._nodes.sums[key] = self._sum(level, classes.tolist(), tables)
        assert found is None or isinstance(found, _Sum)
        return found

    def _sum(self, level: int, classes: list[int], tables: list[Table]) -> _Sum | None:
        """Children put together. What comes last is filled first on the way down: the tightest one where costs already
        say how many domains may be used, the roomiest one where nothing else keeps them few."""
        weights = self._weights(self._layout_below(level))
        counted = [(child, len(list(same))) for child, same in groupby(classes)]
        counted.sort(key=lambda pair: _room(tables[pair[0]], weights), reverse=self._charged)
        total: _Sum | None = None
        for child, count in counted:
            copies = self._copies(level, tables[child], count)
            if copies:
                block = self._block(level, child, copies, tables[child])
                total = block if total is None else self._put(level, total, block)
        return total

    def _copies(self, level: int, table: Table, count: int) -> int:
        """So many of equal children are enough: each that is used takes something, and costs something."""
        copies = min(count, sum(self._layout_below(level).caps))
        price = int(table.costs[table.points.label[0]])
        if price and copies * price > self._limits.most_cost:
            copies = self._limits.most_cost // price
            self._limits.cut(np.array([(copies + 1) * price], dtype=np.int64))
        return copies

    def _block(self, level: int, child: int, copies: int, table: Table) -> _Sum:
        key = (level, child, copies)
        found = self._blocks.get(key)
        if found is None:
            if copies == 1:
                found = _Sum(table, child)
            else:
                half = self._block(level, child, copies // 2, table)
                found = self._put(level, half, half)
                if copies % 2:
                    found = self._put(level, found, self._block(level, child, 1, table))
            self._blocks[key] = found
        return found

    def _put(self, level: int, one: _Sum, other: _Sum) -> _Sum:
        caps = self._layout_below(level).caps
        return _Sum(added(one.table, other.table, caps, self._limits), parts=(one, other))

    def _layout_below(self, level: int) -> Layout:
        return self._problem.levels[level - 1].after

    def _weights(self, layout: Layout) -> Ints:
        found = []
        for roles, cap in zip(layout.roles, layout.caps, strict=True):
            total = sum(self._problem.pods[role] * self._problem.groups[role].requests.gpu_milli for role in roles)
            found.append(total * 1000 // cap + 1)
        return np.array(found, dtype=np.int64)

    def _expanded(self, level: int, domain: int, cost: int, vector: Vector) -> Iterator[tuple[int, Vector]]:
        """Nodes and the pods on them, for counts at a domain that cost no more than `cost`."""
        if not any(vector):
            return
        floor = self._floors[level]
        form = floor.forms[floor.form_of[domain]]
        if level < len(self._problem.levels):
            cost -= form.charge.of(vector)
            vector = _undone(vector, self._problem.levels[level])
        if level == 0:
            yield domain, vector
            return
        assert form.inside is not None
        weights = self._weights(self._layout_below(level))
        below = self._floors[level - 1]
        children = np.flatnonzero(self._state.domains.parent[level - 1] == domain)
        taken: dict[int, list[tuple[int, Vector]]] = {}
        alone = _alone(below, np.unique(below.class_of[children]).tolist(), cost, vector, weights)
        if alone is not None:
            taken[alone] = [(cost, vector)]
        else:
            _split(form.inside, cost, np.array(vector, dtype=np.int64), weights, taken)
        room = self._room_of(level - 1)[children]
        for child, shares in taken.items():
            same = below.class_of[children] == child
            tightest = children[same][np.argsort(room[same], kind="stable")]
            shares.sort(key=lambda share: -int(np.dot(weights, share[1])))
            for where, (price, share) in zip(tightest.tolist(), shares, strict=False):
                yield from self._expanded(level - 1, where, price, share)

    def _room_of(self, level: int) -> Ints:
        of_node = self._state.domains.of_node[level]
        return np.bincount(of_node, weights=self._free, minlength=len(self._state.domains.is_real[level])).astype(
            np.int64
        )


def _classed(table: Table, tables: list[Table], known: dict[object, int]) -> int:
    found = known.get(table.key)
    if found is None:
        found = known[table.key] = len(tables)
        tables.append(table)
    return found


def _room(table: Table, weights: Ints) -> int:
    return int((table.points.vectors @ weights).max(initial=0))


def _alone(floor: _Floor, classes: list[int], cost: int, vector: Vector, weights: Ints) -> int | None:
    """The class with the least room of which one domain holds everything, so that nothing is split without need."""
    found = [
        (_room(table, weights), child)
        for child in classes
        for table in (floor.tables[child],)
        if (least := table.least_cost(vector)) is not None and least <= cost
    ]
    return min(found)[1] if found else None


def _undone(vector: Vector, rules: LevelRules) -> Vector:
    layouts = [rules.before]
    for step in rules.steps:
        layouts.append(step.after(layouts[-1]))
    for step, layout in zip(reversed(rules.steps), reversed(layouts[:-1]), strict=True):
        vector = step.undo(vector, layout)
    return vector


def _split(whole: _Sum, cost: int, vector: Ints, weights: Ints, taken: dict[int, list[tuple[int, Vector]]]) -> None:
    """Shares of all children for counts that cost no more than `cost`."""
    waiting = [(whole, cost, vector)]
    while waiting:
        each, left_cost, wanted = waiting.pop()
        if not wanted.any():
            continue
        if each.parts is None:
            taken.setdefault(each.child, []).append((left_cost, tuple(wanted.tolist())))
            continue
        one, other = each.parts
        price, share = _share(one.table, other.table, left_cost, wanted, weights)
        waiting.append((one, left_cost - price, wanted - share))
        waiting.append((other, price, share))


def _share(one: Table, other: Table, cost: int, wanted: Ints, weights: Ints) -> tuple[int, Ints]:
    """What the other one takes, and what it costs there: as much as leaves something that fits in the first."""
    points = other.points
    shares = np.concatenate([np.zeros((1, len(wanted)), dtype=np.int64), np.minimum(points.vectors, wanted)])
    prices = np.concatenate([np.zeros(1, dtype=np.int64), other.costs[points.label]])
    rows = np.searchsorted(one.costs, cost - prices, side="right") - 1
    rest = wanted - shares
    fits = rows >= 0
    for axis, size in enumerate(one.values.shape[1:]):
        fits &= rest[:, axis] < size
    at = np.flatnonzero(fits)
    have = one.values[(rows[at], *(rest[at, axis] for axis in range(len(wanted) - 1)))]
    at = at[have >= rest[at, -1]]
    best = at[np.lexsort((prices[at], -(shares[at] @ weights)))[0]]
    return int(prices[best]), shares[best]
