"""Conducts an experiment: all its runs, then more where the knee of a sweep is; keeps what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pointsman.app.experiments.comparison import BySeed, Metrics
from pointsman.app.experiments.curves import Curves
from pointsman.app.experiments.plan import Experiment, Result, Run
from pointsman.app.experiments.runner import OnProgress, ProcessDiedError, Runner
from pointsman.app.experiments.sweep import Knee, Sweep, between, knee

GOODPUT_TARGET = 0.99


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an experiment is."""

    done: int
    runs: int
    """To be made in all, as far as known."""
    share: float
    """Of all runs, the part of the run in progress included."""


@dataclass(frozen=True, slots=True)
class Results:
    """What an experiment gave."""

    experiment: Experiment
    """With all points, those of a search for the knee included."""
    results: tuple[Result, ...]
    """In the order of points, entries and seeds."""
    sweep: Sweep | None = None
    interrupted: bool = False
    died: str = ""
    """Why there are no more, where a process was killed."""

    def metrics(self, point: int) -> dict[str, BySeed]:
        """Metrics by label and seed; a policy without finished runs has none."""
        found: dict[str, dict[int, Metrics]] = {entry.label: {} for entry in self.experiment.entries}
        for result in self.results:
            if result.run.point == point:
                label = self.experiment.entries[result.run.entry].label
                found[label][result.run.seed] = result.metrics
        return dict(found)

    def curves(self, point: int, entry: int) -> list[Curves]:
        """Those of each seed."""
        return [each.curves for each in self.results if (each.run.point, each.run.entry) == (point, entry)]

    def missing(self) -> list[Run]:
        """Runs that were not finished."""
        done = {result.run for result in self.results}
        return [run for run in self.experiment.runs() if run not in done]

    def knees(self, target: float = GOODPUT_TARGET) -> dict[str, Knee]:
        """The knee of each policy over the points that it finished; empty without a sweep, an SLO or an order."""
        if self.sweep is None or not self.sweep.ordered or self.experiment.slo is None:
            return {}
        shares: dict[str, dict[float, float]] = {entry.label: {} for entry in self.experiment.entries}
        for number, point in enumerate(self.experiment.points):
            for label, by_seed in self.metrics(number).items():
                if by_seed:
                    shares[label][point.value] = sum(m["goodput_share"] for m in by_seed.values()) / len(by_seed)
        return {label: knee(self.sweep, by_value, target) for label, by_value in shares.items()}


@dataclass(slots=True)
class _Conductor:
    runner: Runner
    experiment: Experiment
    sweep: Sweep | None
    on_progress: Callable[[Progress], None] | None
    found: dict[Run, Result] = field(default_factory=dict)

    def carry_out(self, points: Sequence[int]) -> None:
        runs = [(run, self.experiment.points[run.point]) for run in self.experiment.runs(points)]
        total = len(self.found) + len(runs)

        def tell(part: float = 0.0) -> None:
            if self.on_progress is not None:
                self.on_progress(Progress(len(self.found), total, (len(self.found) + part) / total))

        tell()
        inside: OnProgress | None = None if self.on_progress is None else tell
        for result in self.runner.results(runs, inside):
            self.found[result.run] = result
            tell()

    def extend(self, values: Sequence[float]) -> list[int]:
        assert self.sweep is not None
        first = len(self.experiment.points)
        more = tuple(self.sweep.point(value) for value in values)
        self.experiment = replace(self.experiment, points=(*self.experiment.points, *more))
        return list(range(first, first + len(more)))

    def results(self, *, interrupted: bool = False, died: str = "") -> Results:
        """In order; the points of a sweep by value."""
        order = sorted(range(len(self.experiment.points)), key=lambda number: self.experiment.points[number].value)
        place = {number: position for position, number in enumerate(order)}
        ordered = replace(self.experiment, points=tuple(self.experiment.points[number] for number in order))
        moved = [replace(each, run=replace(each.run, point=place[each.run.point])) for each in self.found.values()]
        moved.sort(key=lambda each: (each.run.point, each.run.entry, each.run.seed))
        return Results(ordered, tuple(moved), self.sweep, interrupted, died)


def conduct(
    experiment: Experiment,
    *,
    jobs: int = 1,
    sweep: Sweep | None = None,
    bisections: int = 0,
    target: float = GOODPUT_TARGET,
    on_progress: Callable[[Progress], None] | None = None,
) -> Results:
    """Carry out an experiment in `jobs` processes.

    `bisections`: so many times, halve the distance between the last good point of each policy and the first bad one.
    `target`: share of requests that have to meet the SLO there. Ctrl-C ends it, and so does a process that is killed;
    what is done is in the results. Raises ProcessDiedError if that is nothing.
    """
    with Runner(experiment, jobs) as runner:
        conductor = _Conductor(runner, experiment, sweep, on_progress)
        try:
            conductor.carry_out(range(len(experiment.points)))
            for _ in range(bisections):
                knees = conductor.results().knees(target)
                values = between(sweep, list(knees.values())) if sweep is not None else []
                if not values:
                    break
                conductor.carry_out(conductor.extend(values))
        except KeyboardInterrupt:
            return conductor.results(interrupted=True)
        except ProcessDiedError as error:
            if not conductor.found:
                raise
            return conductor.results(died=str(error))
        return conductor.results()
