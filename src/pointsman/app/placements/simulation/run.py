"""run_cluster(): gangs, outages and a scheduler on one cluster, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pointsman.app.placements.simulation.demand import Job, close_level
from pointsman.app.placements.simulation.meter import Meter
from pointsman.app.placements.simulation.outages import Outage
from pointsman.app.placements.simulation.outcome import Outcome
from pointsman.app.placements.simulation.scheduler import Look, Scheduler
from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster
from pointsman.core.placement.queues.actions import Action, ActionKind, actions_between
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Topology

_END, _BACK, _FAIL, _COME, _LOOK = range(5)
"""What comes first among the events of one moment."""
_SAME_FLOORS = (ActionKind.GROW, ActionKind.SHRINK, ActionKind.RESHAPE)
OnProgress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a run. Raises PlacementError for what can't be."""

    startup_s: float = 120.0
    """From being whole (again) until a gang computes anything: models are loaded."""
    look_again_s: float = 60.0
    """While gangs wait and nothing happens, the scheduler looks again after so long."""

    def __post_init__(self) -> None:
        if not 0 <= self.startup_s < math.inf:
            raise PlacementError(f"startup_s is {self.startup_s}; 0 or more is expected")
        if not 0 < self.look_again_s < math.inf:
            raise PlacementError(f"look_again_s is {self.look_again_s}; more than 0 is expected")


@dataclass(slots=True)
class _Life:
    """What a gang still has to do."""

    job: Job
    left_s: float
    computes_from_s: float | None = None
    """None: it does not run."""
    version: int = 0
    """Of its end, as it is expected now."""


class _ClusterRun:
    def __init__(self, state: ClusterState, scheduler: Scheduler, pace: Pace, until_s: float) -> None:
        self.state = state
        self.scheduler = scheduler
        self.pace = pace
        self.until_s = until_s
        self.now_s = 0.0
        self.heap: list[tuple[float, int, int, object]] = []
        self.pushed = 0
        self.lives: dict[str, _Life] = {}
        self.since_s: dict[str, float] = {}
        self.submitted_s: dict[str, float] = {}
        self.finished = 0
        self.meter = Meter(state, close_level(state.topology), pace.startup_s)
        self.next_look = 0

    def push(self, at_s: float, kind: int, what: object) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (at_s, kind, self.pushed, what))

    def run(self, on_progress: OnProgress | None) -> Outcome:
        told = 0.0
        while self.heap and self.heap[0][0] <= self.until_s:
            self.now_s = self.heap[0][0]
            self.meter.until(self.now_s)
            is_due = False
            while self.heap and self.heap[0][0] == self.now_s:
                _, kind, _, what = heapq.heappop(self.heap)
                is_due = self.happen(kind, what) or is_due
            if is_due:
                self.look()
            if on_progress is not None and self.now_s - told >= self.until_s / 100:
                told = self.now_s
                on_progress(self.now_s / self.until_s)
        self.meter.until(self.until_s)
        return self.meter.outcome(self.submitted_s, self.finished)

    def happen(self, kind: int, what: object) -> bool:
        """One event; whether the scheduler should look."""
        if kind == _COME:
            assert isinstance(what, Job)
            self.lives[what.gang.name] = _Life(what, what.runs_s)
            self.submitted_s[what.gang.name] = self.now_s
        elif kind == _END:
            assert isinstance(what, tuple)
            name, version = what
            life = self.lives.get(name)
            if life is None or life.version != version:
                return False
            self.state = self.state.release(name)
            self.meter.ended(name)
            del self.lives[name], self.since_s[name]
            self.finished += 1
        elif kind in (_FAIL, _BACK):
            self.state = self.state.with_ready([str(what)], kind == _BACK)
        else:
            return what == self.next_look
        return True

    def look(self) -> None:
        """The scheduler's turn, and what it changes."""
        waiting = self.waiting()
        before = self.state.placements
        gangs = [life.job.gang for life in waiting]
        decided = self.scheduler.look(Look(self.state, gangs, dict(self.since_s), self.now_s))
        self.state = decided.state
        for action in actions_between(before, self.state.placements, decided.why):
            self.meter.acted(action, self.state)
            self.follow(action)
        still = len(self.waiting())
        self.meter.changed(self.state, still)
        if still:
            self.next_look += 1
            self.push(self.now_s + self.pace.look_again_s, _LOOK, self.next_look)

    def waiting(self) -> list[_Life]:
        """Gangs that are not whole, in the order in which they came."""
        placements = self.state.placements
        return [life for name, life in self.lives.items() if name not in placements or not placements[name].is_whole]

    def follow(self, action: Action) -> None:
        """Whether a gang computes, and until when."""
        life, after = self.lives[action.gang], action.after
        if after is None:
            self.since_s.pop(action.gang, None)
        elif action.before is None or action.kind is ActionKind.MOVE:
            self.since_s[action.gang] = self.now_s
        was_whole = action.before is not None and action.before.is_whole
        is_whole = after is not None and after.is_whole
        if was_whole and is_whole and action.kind in _SAME_FLOORS:
            return
        if life.computes_from_s is not None:
            life.left_s -= max(0.0, self.now_s - life.computes_from_s)
            life.computes_from_s = None
            life.version += 1
        if is_whole:
            life.computes_from_s = self.now_s + self.pace.startup_s
            life.version += 1
            self.push(life.computes_from_s + max(0.0, life.left_s), _END, (action.gang, life.version))


def run_cluster(
    cluster: Cluster,
    topology: Topology,
    jobs: Sequence[Job],
    outages: Sequence[Outage],
    scheduler: Scheduler,
    until_s: float,
    *,
    pace: Pace | None = None,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Run a cluster from empty (but for the pods of others) for so long.

    The scheduler looks whenever gangs came or ended, nodes failed or came back, and from time to time while somebody
    waits. Same arguments, same outcome. `on_progress` hears the part that is done, about a hundred times.
    Raises PlacementError for gangs of the same name, times that can't be, and outages of nodes that the cluster lacks
    or that end before they begin.
    """
    if not 0 < until_s < math.inf:
        raise PlacementError(f"until_s is {until_s}; a number above 0 is expected")
    names: set[str] = set()
    for job in jobs:
        if job.gang.name in names:
            raise PlacementError(f"gang {job.gang.name} comes twice; every gang needs a name of its own")
        if not (0 <= job.runs_s < math.inf and 0 <= job.gang.submitted_at_s < math.inf):
            raise PlacementError(
                f"gang {job.gang.name} comes or runs for no time that can be; 0 s or more are expected"
            )
        names.add(job.gang.name)
    run = _ClusterRun(ClusterState.of(cluster, topology), scheduler, pace or Pace(), until_s)
    for job in jobs:
        run.push(job.gang.submitted_at_s, _COME, job)
    for outage in outages:
        run.state.row(outage.node)
        if not 0 <= outage.at_s < outage.back_s:
            raise PlacementError(
                f"node {outage.node} is back at {outage.back_s} s, and fails at {outage.at_s} s; later is expected"
            )
        run.push(outage.at_s, _FAIL, outage.node)
        run.push(outage.back_s, _BACK, outage.node)
    return run.run(on_progress)
