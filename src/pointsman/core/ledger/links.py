"""Links: what is known of moving KV between the machines of the fleet, from transfers and from probes."""

from __future__ import annotations

from collections import Counter

from pointsman.core.model.worker import WorkerSpec
from pointsman.core.timing.link_learning import LinkLearner, LinkRow
from pointsman.core.timing.link_priors import USUAL_PRIORS, LinkPriors
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes

MOST_MACHINES = 4_096
"""Machines of which something is known; those without workers are forgotten first."""
_YOUNG = 4
"""Observations of a direction that policies are told of at once; later ones with the next tick."""


class Links:
    """Owned by the fleet. Machines are numbered as `Column.NODE` has them."""

    def __init__(self, priors: LinkPriors = USUAL_PRIORS) -> None:
        self._learner = LinkLearner(priors)
        self._workers: dict[str, int] = {}
        """Machine → workers there, in the order in which machines were heard of."""
        self._seen: Counter[tuple[str, str]] = Counter()
        self._known = False
        self._due = False
        self._times = NO_LINKS

    @property
    def times(self) -> LinkTimes:
        """As of the last tick; another object when it is another state. None are known until something asks for it."""
        if self._due:
            # Not before somebody asks: thousands of measurements may come at once.
            self._due, self._times = False, self._learner.times()
        return self._times

    # ---- machines

    def joined(self, spec: WorkerSpec) -> int:
        """The number of a worker's machine."""
        name = machine_of(spec)
        self._workers[name] = self._workers.get(name, 0) + 1
        if spec.place:
            self._learner.place(name, spec.place)
        number = self._learner.number(name)
        if spec.kv is not None:
            self._known = True
        self._due = self._due or self._known
        self._forget_some()
        return number

    def left(self, spec: WorkerSpec) -> None:
        """A worker is gone from its machine; what is known of that stays."""
        name = machine_of(spec)
        if name in self._workers:
            self._workers[name] = max(0, self._workers[name] - 1)

    # ---- what happens on them

    def observed(self, source: str, target: str, size_bytes: float, took_ms: float, under_way: int) -> None:
        """One transfer or probe, which so many others shared the link with. Nonsense teaches nothing."""
        for name in (source, target):
            self._workers.setdefault(name, 0)
        if not self._learner.observe(source, target, size_bytes, took_ms, under_way):
            return
        self._known = True
        self._seen[source, target] += 1
        self._due = self._due or self._seen[source, target] <= _YOUNG
        self._forget_some()

    def ticked(self, at_ms: float) -> None:
        """Policies are told what was learned, and what is hoped of links that rest."""
        self._learner.look(at_ms)
        self._due = self._known

    # ---- to show

    def rows(self) -> tuple[LinkRow, ...]:
        """Directions of which something was seen, by names of machines."""
        return self._learner.rows()

    # ---- inside

    def _forget_some(self) -> None:
        if len(self._workers) <= MOST_MACHINES:
            return
        idle = next((name for name, workers in self._workers.items() if not workers), None)
        if idle is not None:
            del self._workers[idle]
            self._learner.forget(idle)
            self._seen = Counter({pair: count for pair, count in self._seen.items() if idle not in pair})


def machine_of(spec: WorkerSpec) -> str:
    """The name of the machine that a worker runs on: as told, else the host of its URL."""
    if spec.place and spec.place[0]:
        return spec.place[0]
    return _host(spec.url)


def _host(url: str) -> str:
    """Of `http://host:port` or `http://[v6]:port`, which is all that a worker's URL is."""
    place = url.partition("://")[2].partition("/")[0] or url
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0].lower()
