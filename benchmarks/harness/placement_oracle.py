"""Exact answers for small placement problems by integer programming (scipy's HiGHS): what the solver is held to.

It shares nothing with the solver but the nouns: domains are read from labels anew, devices are variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.problem import PREFERENCE_FACTOR
from pointsman.core.placement.resources import WHOLE_GPU_MILLI
from pointsman.core.placement.state import ClusterState

_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass
class _Program:
    """Variables and rows, added one by one."""

    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    rows: list[dict[int, float]] = field(default_factory=list)
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)

    def variable(self, high: float, cost: float = 0.0, low: float = 0.0) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        return len(self.cost) - 1

    def row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.append(dict(terms))
        self.row_low.append(low)
        self.row_high.append(high)

    def solve(self) -> float | None:
        entries = [(row, column, value) for row, terms in enumerate(self.rows) for column, value in terms.items()]
        matrix = csr_array(
            ([value for *_, value in entries], ([row for row, *_ in entries], [column for _, column, _ in entries])),
            shape=(len(self.rows), len(self.cost)),
        )
        found = milp(
            np.array(self.cost),
            integrality=np.ones(len(self.cost)),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            constraints=LinearConstraint(matrix, np.array(self.row_low), np.array(self.row_high)),
            options={"mip_rel_gap": 0.0},
        )
        if found.status == _INFEASIBLE:
            return None
        if found.status != _OPTIMAL:
            raise RuntimeError(f"the oracle gave up: {found.message}")
        return float(found.fun)


def domain_key(state: ClusterState, node: int, level: int) -> tuple[object, ...]:
    """Of a node at a level: its label values from there outward; without a label a stand-in around the level below."""
    if level == 0:
        return ("node", node)
    labels = [each.label for each in state.topology.levels[level - 1 :]]
    values = [state.nodes[node].labels.get(label, "") for label in labels]
    return ("domain", *values) if values[0] else ("stand-in", *domain_key(state, node, level - 1))


def is_real(key: tuple[object, ...]) -> bool:
    """Whether a key names a domain and not a stand-in."""
    return key[0] != "stand-in"


def least_cost(state: ClusterState, gang: Gang, kept: Placement | None = None) -> int | None:
    """Cost of the best placement of the floors beside what is kept (which the state must hold); None: there is none."""
    program = _Program()
    nodes, names = range(len(state.nodes)), state.topology.names
    have = kept.replicas if kept else {}
    wanted = {group.name: max(0, group.min_replicas - have.get(group.name, 0)) for group in gang.groups}
    rows_of = {
        group.name: {state.row(pod.node) for pod in (kept.pods if kept else ()) if pod.role == group.name}
        for group in gang.groups
    }
    x: dict[tuple[str, int], int] = {}
    for group in gang.groups:
        pods = wanted[group.name] * group.pods_per_replica
        for node in nodes:
            x[group.name, node] = program.variable(pods if _suits(state, node, group) else 0)
        program.row({x[group.name, node]: 1 for node in nodes}, pods, pods)
    for node in nodes:
        _node_rows(program, state, gang, node, x)
    price = PREFERENCE_FACTOR * max(1, *state.topology.costs)
    offset = 0
    scopes = [(scope.roles, scope.level, scope.required) for scope in gang.scopes()]
    for roles, level_name, required in scopes:
        level = names.index(level_name)
        mine = sorted(role for role in roles if wanted[role])
        there = {domain_key(state, node, level) for role in roles for node in rows_of[role]}
        keys = {node: domain_key(state, node, level) for node in nodes}
        domains = sorted(set(keys.values()), key=repr)
        if not mine:
            offset += price * max(0, len(there) - 1) if not required else 0
            continue
        chosen = {
            key: program.variable(
                1, 0 if required or key in there else price, low=1 if key in there and not required else 0
            )
            for key in domains
        }
        if required:
            ok = there if there else {key for key in domains if is_real(key)}
            program.row({chosen[key]: 1 for key in domains if key in ok}, 1, 1)
            for key in domains:
                if key not in ok:
                    program.row({chosen[key]: 1}, 0, 0)
        else:
            offset += price * (len(there) - 1)
        _open(program, mine, keys, chosen, x, wanted, gang)
    everybody = [group.name for group in gang.groups if wanted[group.name]]
    for level, cost in enumerate(state.topology.costs):
        there = {domain_key(state, node, level) for rows in rows_of.values() for node in rows}
        keys = {node: domain_key(state, node, level) for node in nodes}
        if not cost or not (everybody or there):
            continue
        used = {key: program.variable(1, 0 if key in there else cost) for key in sorted(set(keys.values()), key=repr)}
        offset += cost * (len(there) - 1)
        _open(program, everybody, keys, used, x, wanted, gang, skip=there)
    for group in gang.groups:
        if wanted[group.name]:
            if group.replica_required is not None:
                _whole(program, state, group, names.index(group.replica_required), x, wanted, None)
            if group.replica_preferred is not None and group.pods_per_replica > 1:
                given_up = program.variable(1, price)
                _whole(program, state, group, names.index(group.replica_preferred), x, wanted, given_up)
    if not everybody:
        return 0
    found = program.solve()
    return None if found is None else round(found) + offset


def _suits(state: ClusterState, node: int, group) -> bool:
    each = state.nodes[node]
    if not state.up[node] or (group.gpu_kinds and each.gpu_kind not in group.gpu_kinds):
        return False
    if any(
        each.labels.get(label) is None or (v and each.labels[label] not in v) for label, v in group.selector.items()
    ):
        return False
    return all(
        taint.effect == "PreferNoSchedule" or any(t.tolerates(taint) for t in group.tolerations)
        for taint in each.taints
    )


def _node_rows(program: _Program, state: ClusterState, gang: Gang, node: int, x: dict[tuple[str, int], int]) -> None:
    program.row({x[g.name, node]: g.requests.cpu_milli for g in gang.groups}, high=int(state.cpu_free_milli[node]))
    # In MiB, so that numbers stay small; cases use whole ones.
    program.row(
        {x[g.name, node]: g.requests.memory_bytes / 2**20 for g in gang.groups},
        high=int(state.memory_free_bytes[node]) / 2**20,
    )
    whole_rows: dict[int, float] = {x[g.name, node]: g.requests.whole_gpus for g in gang.groups}
    shares: dict[str, dict[int, float]] = {g.name: {} for g in gang.groups if g.requests.device_share_milli}
    for free in state.device_free_milli[node].tolist():
        if free <= 0:
            continue
        whole = program.variable(1 if free == WHOLE_GPU_MILLI else 0)
        whole_rows[whole] = -1
        device: dict[int, float] = {whole: free}
        for group in gang.groups:
            if group.requests.device_share_milli:
                part = program.variable(free // group.requests.gpu_milli)
                device[part] = group.requests.gpu_milli
                shares[group.name][part] = 1
        program.row(device, high=free)
    program.row(whole_rows, high=0)
    for role, parts in shares.items():
        program.row({x[role, node]: -1, **parts}, 0, 0)


def _open(program, roles, keys, chosen, x, wanted, gang, skip=frozenset()) -> None:
    """Pods only where the domain is chosen."""
    for role in roles:
        most = wanted[role] * gang.group(role).pods_per_replica
        for node, key in keys.items():
            if key not in skip:
                program.row({x[role, node]: 1, chosen[key]: -most}, high=0)


def _whole(program, state, group, level, x, wanted, given_up) -> None:
    """Pods of a domain are whole replicas, unless that is given up."""
    domains: dict[tuple[object, ...], list[int]] = {}
    for node in range(len(state.nodes)):
        domains.setdefault(domain_key(state, node, level), []).append(node)
    size, most = group.pods_per_replica, wanted[group.name] * group.pods_per_replica
    for key, nodes in domains.items():
        terms: dict[int, float] = {x[group.name, node]: 1 for node in nodes}
        if is_real(key):
            terms[program.variable(wanted[group.name])] = -size
        if given_up is not None:
            program.row({**terms, given_up: -most}, high=0)
            if is_real(key):
                program.row({**terms, given_up: most}, low=0)
        else:
            program.row(terms, 0, 0)
