"""Domains: the tree that a topology makes of nodes, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.placement.cluster import Node
from pointsman.core.placement.topology import Topology

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Domains:
    """Which nodes are close to which. Levels as in `Topology.names`, near to far, then one more: the cluster.

    A domain is named by its label value and those of all farther levels, so that domains nest: rack r1 of zone a is not
    rack r1 of zone b. Nodes without a domain at a level form stand-ins there, one for each domain of the level below:
    they count in spread, but can't meet a constraint.
    """

    of_node: Ints
    """(levels + 1, nodes): id of the domain at each level, counted from 0 at each."""
    parent: tuple[Ints, ...]
    """For each level but the cluster: id one level farther, of each domain."""
    is_real: tuple[Bools, ...]
    """For each level: whether a domain is one, or a stand-in."""
    names: tuple[tuple[str, ...], ...]
    """For each level: the values of its label; of stand-ins, the name of the first node."""

    @property
    def levels(self) -> int:
        """Levels, `node` among them and the cluster not."""
        return len(self.parent)

    def title(self, level: int, domain: int) -> str:
        """Its name; where another domain of the level has the same, the nearest farther one that tells them apart too:
        r1 (zone-a)."""
        name = self.names[level][domain]
        same = [each for each, other in enumerate(self.names[level]) if other == name and each != domain]
        mine, others = domain, np.array(same, dtype=np.int64)
        for above in range(level, self.levels - 1):
            mine, others = int(self.parent[above][mine]), self.parent[above][others]
            far = self.names[above + 1]
            if len(same) and all(far[other] != far[mine] for other in others):
                return f"{name} ({far[mine]})"
        return name

    def distance(self, one: int, other: int) -> int:
        """Of two nodes by row: position of the nearest level at which they share a domain; 0 is the same node."""
        return int(np.argmax(self.of_node[:, one] == self.of_node[:, other]))


def domains_of(nodes: Sequence[Node], topology: Topology) -> Domains:
    """The tree of these nodes."""
    count = len(nodes)
    labels = [level.label for level in topology.levels]
    of_node = [np.arange(count, dtype=np.int64)]
    names: list[tuple[str, ...]] = [tuple(node.name for node in nodes)]
    is_real: list[Bools] = [np.ones(count, dtype=np.bool_)]
    parents: list[Ints] = []
    for position, label in enumerate(labels):
        ids: dict[tuple[object, ...], int] = {}
        level_names: list[str] = []
        real: list[bool] = []
        below = of_node[-1]
        rows = np.empty(count, dtype=np.int64)
        for row, node in enumerate(nodes):
            value = node.labels.get(label, "")
            if value:
                key: tuple[object, ...] = (value, *(node.labels.get(far, "") for far in labels[position + 1 :]))
            else:
                key = (None, int(below[row]))
            found = ids.get(key)
            if found is None:
                found = ids[key] = len(ids)
                level_names.append(value or node.name)
                real.append(bool(value))
            rows[row] = found
        parents.append(_parents(below, rows, len(is_real[-1])))
        of_node.append(rows)
        names.append(tuple(level_names))
        is_real.append(np.array(real, dtype=np.bool_))
    parents.append(np.zeros(len(is_real[-1]), dtype=np.int64))
    of_node.append(np.zeros(count, dtype=np.int64))
    names.append(("cluster",))
    is_real.append(np.ones(1, dtype=np.bool_))
    return Domains(np.stack(of_node), tuple(parents), tuple(is_real), tuple(names))


def _parents(below: Ints, above: Ints, count: int) -> Ints:
    found = np.zeros(count, dtype=np.int64)
    found[below] = above
    return found
