"""Suitability: which nodes a role's pods may go to at all, whatever is free there, and why not to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pointsman.core.placement.cluster import PREFER_NO_SCHEDULE, Node
from pointsman.core.placement.domains import Bools
from pointsman.core.placement.gang import RoleGroup
from pointsman.core.placement.resources import Resources, shown, shown_gib

_CORDONED = "node.kubernetes.io/unschedulable"
_DOWN = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True)
class Suitability:
    """Answers for a set of nodes; each kind of question is worked out once and remembered."""

    nodes: Sequence[Node]
    _known: dict[object, Bools] = field(default_factory=dict, repr=False)
    _large: dict[Resources, Bools] = field(default_factory=dict, repr=False)

    def of(self, group: RoleGroup) -> Bools:
        """By node: whether selector, GPU kind and taints let the role in. Cordons and readiness are the state's."""
        key = (
            tuple(sorted((label, values) for label, values in group.selector.items())),
            group.gpu_kinds,
            group.tolerations,
        )
        found = self._known.get(key)
        if found is None:
            found = np.fromiter((_obstacle(node, group) is None for node in self.nodes), np.bool_, len(self.nodes))
            found.setflags(write=False)
            self._known[key] = found
        return found

    def large_enough(self, group: RoleGroup) -> Bools:
        """By node: whether a pod of the role would fit if the node were empty."""
        found = self._large.get(group.requests)
        if found is None:
            found = np.fromiter((_too_small(node, group) is None for node in self.nodes), np.bool_, len(self.nodes))
            found.setflags(write=False)
            self._large[group.requests] = found
        return found

    def obstacles(self, group: RoleGroup) -> Counter[str]:
        """Why nodes will not do for a role even if they were empty and up → how many; the others are not counted."""
        found: Counter[str] = Counter()
        for node in self.nodes:
            obstacle = _obstacle(node, group) or _too_small(node, group)
            if obstacle:
                found[obstacle] += 1
        return found

    def barred(self, group: RoleGroup) -> Counter[str]:
        """Why nodes that are large enough for a role will not do all the same → how many."""
        return Counter(
            obstacle
            for node in self.nodes
            if _too_small(node, group) is None and (obstacle := _obstacle(node, group)) is not None
        )


def _obstacle(node: Node, group: RoleGroup) -> str | None:
    for label, values in group.selector.items():
        have = node.labels.get(label)
        if have is None or (values and have not in values):
            return f"label {label} is not {' or '.join(values) or 'there'}"
    if group.gpu_kinds and node.gpu_kind not in group.gpu_kinds:
        return f"GPU is not {' or '.join(group.gpu_kinds)}"
    for taint in node.taints:
        # Kubernetes taints such nodes by itself; that they are cordoned or down says the state, and in plainer words.
        if (node.cordoned and taint.key == _CORDONED) or (not node.ready and taint.key in _DOWN):
            continue
        if taint.effect != PREFER_NO_SCHEDULE and not any(each.tolerates(taint) for each in group.tolerations):
            return f"taint {taint}"
    return None


def _too_small(node: Node, group: RoleGroup) -> str | None:
    asks = group.requests
    if asks.gpu_milli > node.gpus * 1000:
        return f"fewer than {shown(asks.gpus)} GPUs"
    if asks.cpu_milli > node.cpu_milli:
        return f"less than {shown(asks.cpu_milli / 1000)} CPUs"
    if asks.memory_bytes > node.memory_bytes:
        return f"less than {shown_gib(asks.memory_bytes)} of memory"
    return None
