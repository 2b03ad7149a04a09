"""Laboratory: simulates policies on fleets at loads, each combination once, and remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType

from pointsman.app.advice.fleets import Fleet
from pointsman.app.advice.question import Question
from pointsman.app.experiments.comparison import BySeed, Metrics
from pointsman.app.experiments.conduct import Progress, Results
from pointsman.app.experiments.plan import Experiment, Point, Result, Run, entries
from pointsman.app.experiments.runner import Runner
from pointsman.app.experiments.workload import Recorded
from pointsman.core.model.transfer import TransferMode
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.policy import Policy
from pointsman.core.policies.prefix import Prefix
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.workload.trace import Trace

POLICIES: tuple[Policy, ...] = (RoundRobin(), LeastLoaded(), Cost(), Prefix(), Kv())
"""All that are simulated."""
BY_REQUEST = "cost"
"""The policy that decides for each request whether KV is moved."""
_NUMBER = {policy.name: number for number, policy in enumerate(POLICIES)}
NEED_EVENTS = frozenset({"kv", BY_REQUEST})
"""Policies that need engines to say which blocks they hold; the others are simulated without."""
NOISE = 0.03
"""Spread of step times."""


@dataclass(frozen=True, slots=True)
class Case:
    """One policy on one fleet at one load."""

    policy: str
    fleet: Fleet
    rate: float = 1.0
    """How many times as fast as the trace."""
    moves: bool = False
    """KV may move between all workers; else only from those for prefill."""


@dataclass(slots=True)
class Laboratory:
    """Use it as a context."""

    question: Question
    trace: Trace
    """What is simulated of the question's trace."""
    jobs: int
    on_progress: Callable[[Progress], None] | None = None
    expected: int = 0
    """Runs that are about to be made in all, for the progress."""
    _found: dict[tuple[Case, int], Result] = field(default_factory=dict)
    _runner: Runner = field(init=False)
    _experiment: Experiment = field(init=False)

    def __post_init__(self) -> None:
        base = Point(self.question.setup)
        workload = Recorded(self.trace)
        self._experiment = Experiment(workload, entries(POLICIES), (base,), self.question.seeds, self.question.slo)
        self._runner = Runner(self._experiment, self.jobs)

    def __enter__(self) -> Laboratory:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, trace)

    def measure(self, wanted: Iterable[tuple[Case, int]]) -> None:
        """Simulate those cases under those seeds that are not known yet, in parallel."""
        new = [each for each in dict.fromkeys(wanted) if each not in self._found]
        new.sort(key=lambda each: (each[0].rate, each[1]))  # Those with the same traffic after each other.
        by_run = {}
        runs = []
        for number, (case, seed) in enumerate(new):
            # The number of the point only has to tell runs apart.
            run = Run(number, _NUMBER[case.policy], seed)
            by_run[run] = (case, seed)
            runs.append((run, self._point(case)))
        self._tell(0.0)
        for result in self._runner.results(runs, self._tell):
            self._found[by_run[result.run]] = result
            self._tell(0.0)

    def metrics(self, case: Case, seed: int) -> Metrics | None:
        """What was measured; None: it was not simulated."""
        result = self._found.get((case, seed))
        return None if result is None else result.metrics

    def by_seed(self, case: Case) -> BySeed:
        """All that was measured of a case."""
        return {seed: result.metrics for (known, seed), result in self._found.items() if known == case}

    def results(self, cases: Iterable[Case], *, interrupted: bool) -> Results:
        """Cases of one fleet and load as an experiment of its own, for its report."""
        order = list(cases)
        chosen = entries(POLICIES[_NUMBER[case.policy]] for case in order)
        experiment = replace(self._experiment, entries=chosen, points=(self._point(order[-1]),))
        found = [
            replace(result, run=Run(0, number, seed))
            for number, case in enumerate(order)
            for seed in range(self.question.seeds)
            if (result := self._found.get((case, seed))) is not None
        ]
        return Results(experiment, tuple(found), interrupted=interrupted)

    @property
    def done(self) -> int:
        """Simulations made."""
        return len(self._found)

    def _point(self, case: Case) -> Point:
        events = case.policy in NEED_EVENTS
        setup = replace(
            self.question.setup,
            groups=case.fleet.groups,
            kv_events=events,
            step_noise=NOISE,
            kv_transfer=TransferMode.AUTO if case.moves else None,
        )
        return Point(setup, case.rate, name=f"{case.fleet.name}, load ×{case.rate:g}")

    def _tell(self, part: float) -> None:
        if self.on_progress is not None:
            runs = max(self.expected, self.done)
            self.on_progress(Progress(self.done, runs, min(1.0, (self.done + part) / max(runs, 1))))
