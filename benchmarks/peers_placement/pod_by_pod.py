"""Pod by pod, as kube-scheduler without gangs: every pod by itself, by priority and age, where it fits.

Of a deployment's pods those that fit are bound and keep what they have; the others wait. Nodes are scored by what is
used already, most first (`packed`, kinder to large pods) or least first (the default profile). A pod of higher
priority may take the place of pods of lower priority on one node. Deployments whose pods are created in the same
seconds are interleaved.
"""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np

from peers_placement.board import Board, Pod, floor_pods
from pointsman.app.placements.simulation.scheduler import Decided, Look
from pointsman.core.placement.plan import PodPlace
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.state import ClusterState


class PodByPod:
    """A `Scheduler`."""

    def __init__(self, *, packed: bool = True, created_within_s: float = 5.0) -> None:
        self._packed = packed
        self._created_within_s = created_within_s

    def look(self, look: Look) -> Decided:
        """All waiting pods, one after another."""
        board = Board(look.state)
        board.lose_pods_of_lost_nodes()
        why: dict[str, Why] = {name: Why(Cause.NODE_LOST) for name in look.state.placements if name not in board.held}
        gangs = {gang.name: gang for gang in look.waiting} | {name: board.gangs[name] for name in board.held}
        pods = [pod for gang in gangs.values() for pod in floor_pods(gang) if not board.has(pod)]
        hopeless: set[tuple[object, ...]] = set()
        for pod in sorted(pods, key=self._order):
            asks = pod.group.requests
            selector = tuple(sorted(pod.group.selector.items()))
            kind = (asks, pod.group.gpu_kinds, selector, pod.group.tolerations, pod.gang.priority)
            if kind in hopeless:
                continue
            fits = board.fits(pod.group)
            if fits.any():
                used = -board.whole_free() if self._packed else board.whole_free()
                board.take(pod, int(np.argmax(np.where(fits, used, -1_000_000))))
                continue
            if not self._preempted(board, look.state, pod, why):
                hopeless.add(kind)
        return Decided(board.state(), why)

    def _order(self, pod: Pod) -> tuple[int, float, str, str, int, int]:
        gang = pod.gang
        key = f"{gang.name}/{pod.group.name}/{pod.replica}/{pod.pod}"
        created_s = gang.submitted_at_s + random.Random(key).random() * self._created_within_s
        return -gang.priority, created_s, gang.name, pod.group.name, pod.replica, pod.pod

    def _preempted(self, board: Board, state: ClusterState, pod: Pod, why: dict[str, Why]) -> bool:
        """The pod on the node where the fewest GPUs of lower priority have to go, if there is one."""
        lower: dict[str, list[tuple[int, str, PodPlace]]] = defaultdict(list)
        for name, places in board.held.items():
            gang = board.gangs[name]
            if gang.priority < pod.gang.priority:
                for place in places.values():
                    if gang.group(place.role).requests.gpu_milli:
                        lower[place.node].append((gang.priority, name, place))
        wanted = pod.group.requests.whole_gpus
        best: tuple[int, int, list[tuple[int, str, PodPlace]]] | None = None
        free = board.whole_free()
        suitable = state.up & state.suitability.of(pod.group)
        for node, candidates in lower.items():
            row = state.row_of[node]
            if not suitable[row]:
                continue
            have, victims = int(free[row]), []
            for victim in sorted(candidates, key=lambda each: each[0]):
                if have >= wanted:
                    break
                have += len(victim[2].devices)
                victims.append(victim)
            if have >= wanted and (best is None or have - int(free[row]) < best[0]):
                best = have - int(free[row]), row, victims
        if best is None:
            return False
        for _, name, place in best[2]:
            board.give(name, place)
            why[name] = Why(Cause.PREEMPTION, pod.gang.name)
        if not board.fits(pod.group)[best[1]]:
            return False  # CPU or memory is short: kube-scheduler would look further, and the pods are gone either way
        board.take(pod, best[1])
        return True
