"""What is wrong with a placement, found without the solver: from pods, labels and the gang's constraints alone."""

from __future__ import annotations

from collections import Counter, defaultdict

from harness.placement_oracle import domain_key, is_real
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.problem import PREFERENCE_FACTOR
from pointsman.core.placement.resources import WHOLE_GPU_MILLI
from pointsman.core.placement.state import ClusterState


def faults(state: ClusterState, placement: Placement) -> list[str]:
    """Broken rules of a placement that the state does not hold yet; none: it may be held."""
    gang, found = placement.gang, []
    by_replica: dict[tuple[str, int], list[PodPlace]] = defaultdict(list)
    for pod in placement.pods:
        by_replica[pod.role, pod.replica].append(pod)
    for group in gang.groups:
        mine = [pods for (role, _), pods in by_replica.items() if role == group.name]
        if not group.min_replicas <= len(mine) <= group.max_replicas:
            found.append(f"{group.name}: {len(mine)} replicas")
        for pods in mine:
            if sorted(pod.pod for pod in pods) != list(range(group.pods_per_replica)):
                found.append(f"{group.name}: a replica is not whole")
            if group.replica_required:
                found += _together(state, pods, group.replica_required, f"{group.name}.replica_required")
    for scope in gang.scopes():
        pods = [pod for pod in placement.pods if pod.role in scope.roles]
        if scope.required and pods:
            found += _together(state, pods, scope.level, scope.origin)
    return found + _overbooked(state, gang, placement.pods)


def cost_of_pods(state: ClusterState, gang: Gang, pods: tuple[PodPlace, ...]) -> int:
    """Spread and unmet preferences by role; what `replica_preferred` costs is left out."""
    total = 0
    names = state.topology.names
    for level, cost in enumerate(state.topology.costs):
        total += cost * (len({domain_key(state, state.row(pod.node), level) for pod in pods}) - 1)
    price = PREFERENCE_FACTOR * max(1, *state.topology.costs)
    for scope in gang.scopes():
        level = names.index(scope.level)
        mine = {domain_key(state, state.row(pod.node), level) for pod in pods if pod.role in scope.roles}
        if not scope.required and mine:
            total += price * (len(mine) - 1)
    return total


def _together(state: ClusterState, pods: list[PodPlace], level: str, origin: str) -> list[str]:
    at = state.topology.names.index(level)
    keys = {domain_key(state, state.row(pod.node), at) for pod in pods}
    return [] if len(keys) == 1 and is_real(next(iter(keys))) else [f"{origin}: {sorted(map(str, keys))}"]


def _overbooked(state: ClusterState, gang: Gang, pods: tuple[PodPlace, ...]) -> list[str]:
    found = []
    devices: Counter[tuple[str, int]] = Counter()
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for pod in pods:
        asks, row = gang.group(pod.role).requests, state.row(pod.node)
        if not state.up[row]:
            found.append(f"{pod.node} is down")
        wanted = 1 if asks.device_share_milli else asks.whole_gpus
        if len(set(pod.devices)) != wanted:
            found.append(f"{pod}: {wanted} devices are expected")
        for device in pod.devices:
            devices[pod.node, device] += asks.device_share_milli or WHOLE_GPU_MILLI
        cpu[pod.node] += asks.cpu_milli
        memory[pod.node] += asks.memory_bytes
    for (node, device), milli in devices.items():
        if milli > state.device_free_milli[state.row(node), device]:
            found.append(f"{node}, device {device}: {milli} asked for")
    found += [f"{node}: cpu" for node, milli in cpu.items() if milli > state.cpu_free_milli[state.row(node)]]
    found += [f"{node}: memory" for node, size in memory.items() if size > state.memory_free_bytes[state.row(node)]]
    return found
