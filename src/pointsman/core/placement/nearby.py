"""Nearby: domains that may hold everything by themselves, tried before the whole cluster: most gangs are small, and a
search in one rack costs little."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pointsman.core.placement.node_tables import NodeTables
from pointsman.core.placement.problem import Problem
from pointsman.core.placement.relaxation import Bound
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import empty

MOST_TRIED = 8


def single_domains(state: ClusterState, problem: Problem, nodes: NodeTables, bound: Bound) -> Iterator[NodeTables]:
    """Node tables in which only one domain's nodes take anything: domains of the nearest level that have room for all
    roles, the tightest first. What fits there at the bound's cost is as good as it gets."""
    free = state.gpu_free_milli
    for level in range(1, state.domains.levels):
        of_node = state.domains.of_node[level]
        domains = len(state.domains.is_real[level])
        enough = np.bincount(of_node, weights=bound.room, minlength=domains) >= bound.wanted
        for role, most in zip(problem.order, nodes.most, strict=True):
            enough &= np.bincount(of_node, weights=most, minlength=domains) >= problem.pods[role]
        candidates = np.flatnonzero(enough)
        if len(candidates):
            room = np.bincount(of_node, weights=free, minlength=domains)[candidates]
            for domain in candidates[np.argsort(room, kind="stable")][:MOST_TRIED].tolist():
                yield _only(nodes, of_node == domain, len(problem.order))
            return


def _only(nodes: NodeTables, inside: np.ndarray, items: int) -> NodeTables:
    nothing = empty(items)
    class_of = np.where(inside, nodes.class_of, len(nodes.tables))
    return NodeTables(class_of, (*nodes.tables, nothing), nodes.most)
