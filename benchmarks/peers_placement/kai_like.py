"""A greedy gang scheduler in the manner of KAI: one group after another, roles in order, no choice taken back.

A group is placed whole or not at all. Its constraint as a whole picks a domain: those that could hold it by count,
fullest first, each tried. Inside, role after role is put into the fullest domain of its own constraint that could hold
it, and on the fullest nodes; when a later role then finds no room, the earlier ones stay where they are and the domain
counts as too small. `separate`: every role of a deployment is a group of its own, as those of two controllers are.

Left out: fair shares and reclaim between queues (one queue), and consolidation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from peers_placement.board import Board, Pod, floor_pods
from pointsman.app.placements.simulation.scheduler import Decided, Look
from pointsman.core.placement.domains import Bools
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import PodPlace
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.state import ClusterState

STALE_S = 60.0
"""A group below its floor is given up after so long."""
MADE_APART_S = 5.0
"""Groups of the roles of one deployment are made one after another, so those of deployments of the same moment mix."""


class KaiLike:
    """A `Scheduler`."""

    def __init__(self, *, separate: bool = False) -> None:
        self._separate = separate
        self._stale_since_s: dict[str, float] = {}

    def look(self, look: Look) -> Decided:
        """One cycle: repair or give up what lost nodes, allocate, preempt."""
        board = Board(look.state)
        board.lose_pods_of_lost_nodes()
        why: dict[str, Why] = {name: Why(Cause.NODE_LOST) for name in look.state.placements if name not in board.held}
        waiting = {gang.name: gang for gang in look.waiting}
        # Whole gangs that just lost a node are not among those who wait.
        broken = {
            name: board.gangs[name]
            for name in look.state.placements
            if name not in waiting and not all(board.has(pod) for pod in floor_pods(board.gangs[name]))
        }
        groups = [each for gang in {**waiting, **broken}.values() for each in self._groups(gang)]
        hopeless: set[str] = set()
        for *_, gang, roles in sorted(groups, key=lambda each: each[:3]):
            board = self._turn(board, look, gang, roles, why, hopeless)
        return Decided(board.state(), why)

    def _groups(self, gang: Gang) -> Iterator[tuple[int, float, str, Gang, Sequence[RoleGroup]]]:
        """Priority, time at which it is made, name of the gang; and what belongs to the group."""
        if not self._separate:
            yield -gang.priority, gang.submitted_at_s, gang.name, gang, gang.groups
            return
        for at, group in enumerate(gang.groups):
            yield -gang.priority, gang.submitted_at_s + at * MADE_APART_S, gang.name, gang, (group,)

    def _turn(
        self,
        board: Board,
        look: Look,
        gang: Gang,
        roles: Sequence[RoleGroup],
        why: dict[str, Why],
        hopeless: set[str],
    ) -> Board:
        names = {group.name for group in roles}
        missing = [pod for pod in floor_pods(gang) if pod.group.name in names and not board.has(pod)]
        if not missing:
            return board
        key = f"{gang.name}/{min(names)}"
        shape = repr((gang.groups, gang.near, gang.required, gang.preferred, names, gang.priority, len(missing)))
        if shape in hopeless:
            return board
        placed = _placed(board, look.state, gang, missing)
        if placed is None:
            placed = self._preempting(board, look, gang, missing, why)
        if placed is not None:
            self._stale_since_s.pop(key, None)
            return placed
        is_partly_there = any(place.role in names for place in board.held.get(gang.name, {}).values())
        if not is_partly_there:
            hopeless.add(shape)
            return board
        since_s = self._stale_since_s.setdefault(key, look.now_s)
        if look.now_s - since_s >= STALE_S:
            del self._stale_since_s[key]
            for place in [place for place in board.held[gang.name].values() if place.role in names]:
                board.give(gang.name, place)
            why[gang.name] = Why(Cause.NODE_LOST)
        return board

    def _preempting(
        self, board: Board, look: Look, gang: Gang, missing: Sequence[Pod], why: dict[str, Why]
    ) -> Board | None:
        victims = []
        for name in board.held:
            other = board.gangs[name]
            ran_s = look.now_s - look.since_s.get(name, look.now_s)
            if other.preemptible and other.priority < gang.priority and ran_s >= other.min_runtime_s:
                victims.append((other.priority, -look.since_s.get(name, look.now_s), name))
        trial = board.copy() if victims else board
        taken = []
        for _, _, name in sorted(victims):
            taken.append(name)
            for place in list(trial.held[name].values()):
                trial.give(name, place)
            placed = _placed(trial, look.state, gang, missing)
            if placed is not None:
                for victim in taken:
                    why[victim] = Why(Cause.PREEMPTION, gang.name)
                return placed
        return None


def _placed(board: Board, state: ClusterState, gang: Gang, missing: Sequence[Pod]) -> Board | None:
    """The missing pods of a group, all of them, on a copy; None if the greedy order finds no room."""
    for domain in _candidates(board, state, gang, missing):
        trial = board.copy()
        if _filled(trial, state, gang, missing, domain):
            return trial
    return None


def _candidates(board: Board, state: ClusterState, gang: Gang, missing: Sequence[Pod]) -> Iterator[Bools]:
    """Where the group as a whole may go: domains that could hold it by count, fullest first; from the level that is
    preferred up to the one that is required."""
    names = {pod.group.name for pod in missing}
    scopes = [scope for scope in gang.scopes() if len(scope.roles & names) > 1 or scope.roles >= names]
    required = [state.topology.index(scope.level) for scope in scopes if scope.required]
    preferred = [state.topology.index(scope.level) for scope in scopes if not scope.required]
    top = min(required, default=len(state.topology.names))
    levels = range(min([*preferred, top]), top + 1)
    there = [state.row_of[place.node] for place in board.held.get(gang.name, {}).values()]
    for level in levels:
        of_node = state.domains.of_node[level]
        is_bound = bool(required) and level == top
        real = state.domains.is_real[level] if is_bound else None
        yield from _domains(board, of_node, missing, {int(of_node[row]) for row in there} if is_bound else None, real)


def _domains(
    board: Board, of_node: np.ndarray, missing: Sequence[Pod], pinned: set[int] | None, real: Bools | None
) -> Iterator[Bools]:
    counts: dict[str, int] = {}
    groups = {pod.group.name: pod.group for pod in missing}
    for pod in missing:
        counts[pod.group.name] = counts.get(pod.group.name, 0) + 1
    size = int(of_node.max()) + 1
    enough = np.ones(size, dtype=np.bool_) if real is None else real.copy()
    for name, count in counts.items():
        enough &= np.bincount(of_node, board.room(groups[name]), size) >= count
    free = np.bincount(of_node, board.whole_free(), size)
    for domain in np.lexsort((np.arange(size), free)).tolist():
        if enough[domain] and (not pinned or domain in pinned):
            yield of_node == domain


def _filled(board: Board, state: ClusterState, gang: Gang, missing: Sequence[Pod], inside: Bools) -> bool:
    for group in gang.groups:
        pods = [pod for pod in missing if pod.group.name == group.name]
        if pods and not _role_filled(board, state, group, pods, inside):
            return False
    return True


def _role_filled(board: Board, state: ClusterState, group: RoleGroup, pods: Sequence[Pod], inside: Bools) -> bool:
    """One role; its own constraint picks one domain, for good, and each replica's another one inside it."""
    there = board.held.get(pods[0].gang.name, {})
    mine = {place.replica: place for place in there.values() if place.role == group.name}
    if group.required is not None:
        found = _domain_for(board, state, group.required, inside, pods, next(iter(mine.values()), None))
        if found is None:
            return False
        inside = found
    by_replica: dict[int, list[Pod]] = {}
    for pod in pods:
        by_replica.setdefault(pod.replica, []).append(pod)
    for number, replica in by_replica.items():
        where = inside
        if group.replica_required is not None:
            found = _domain_for(board, state, group.replica_required, inside, replica, mine.get(number))
            if found is None:
                return False
            where = found
        for pod in replica:
            fits = board.fits(group) & where
            if not fits.any():
                return False
            board.take(pod, int(np.argmax(np.where(fits, -board.whole_free(), -1_000_000))))
    return True


def _domain_for(
    board: Board, state: ClusterState, level: str, inside: Bools, pods: Sequence[Pod], beside: PodPlace | None
) -> Bools | None:
    """Nodes of the fullest domain of a level that has room for the pods by count, or of the one where `beside` is, if
    something is there already. Nodes without the level's label are in no domain."""
    at = state.topology.index(level)
    of_node = state.domains.of_node[at]
    usable = inside & state.domains.is_real[at][of_node]
    if beside is not None:
        usable = usable & (of_node == of_node[state.row_of[beside.node]])
    size = int(of_node.max()) + 1
    enough = np.bincount(of_node, np.where(usable, board.room(pods[0].group), 0), size) >= len(pods)
    free = np.bincount(of_node, np.where(usable, board.whole_free(), 0), size)
    there = np.bincount(of_node, usable, size) > 0
    for domain in np.lexsort((np.arange(size), free)).tolist():
        if there[domain] and enough[domain]:
            return usable & (of_node == domain)
    return None
