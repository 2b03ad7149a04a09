"""Decision: the chosen plan and the record of why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.plan import Aggregate, Disaggregate, Plan, Pull, answering
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.model.worker import WorkerId

Values = NDArray[np.generic]
"""One number a worker of the view."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker as the policy judged it."""

    worker: WorkerId
    score: float | None
    """In the decision's unit, the least wins; None where it was excluded."""
    terms: Mapping[str, float]
    """What the score is made of. Where a policy's score is a sum, they add up to it."""
    excluded: str | None
    """Why it could not be chosen."""
    cached_tokens: int
    load: int


@dataclass(frozen=True, slots=True)
class PlanRows:
    """Plans that move KV, as the policy judged them beside those for one worker. One entry a plan.

    Rows are those of the view; -1: the plan has none. `prefill` ≥ 0: prefill and decode apart; `source` ≥ 0: a pull.
    """

    prefill: NDArray[np.intp]
    decode: NDArray[np.intp]
    """The worker that answers; always there."""
    source: NDArray[np.intp]
    moved_tokens: NDArray[np.int64]
    """Tokens whose KV would be moved."""
    scores: NDArray[np.float64]
    """In the decision's unit; inf where the plan was excluded."""
    terms: Mapping[str, NDArray[np.float64]]
    """They add up to the score."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    """Number of a plan → why it could not be chosen."""
    chosen: int = -1
    """Number of the plan that was chosen; -1: none of these."""
    comparable: bool = True
    """Scores can be compared with those of the workers alone; False: they only rank the workers for the prompt."""


class PlanRowsLater(PlanRows):
    """Plans that are worked out when somebody looks at them: which one was chosen, or that none was, is known."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], PlanRows] | None = None, **values: Any) -> None:
        """`values`: of all fields, as `dataclasses.replace` makes copies: then nothing is left to be worked out."""
        for name, value in {"_make": make, "chosen": -1, "comparable": True, **values}.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Of a field that has no value yet."""
        if name.startswith("_"):
            raise AttributeError(name)
        made = self._make()
        for one in fields(PlanRows):
            if one.name not in ("chosen", "comparable"):  # it was decided
                object.__setattr__(self, one.name, getattr(made, one.name))
        return object.__getattribute__(self, name)


class TermsLater(Mapping[str, NDArray[np.float64]]):
    """Terms of plans, worked out at the first look: most decisions are never looked at."""

    __slots__ = ("_make", "_terms")

    def __init__(self, make: Callable[[], Mapping[str, NDArray[np.float64]]]) -> None:
        self._make = make
        self._terms: Mapping[str, NDArray[np.float64]] | None = None

    def _made(self) -> Mapping[str, NDArray[np.float64]]:
        if self._terms is None:
            self._terms = self._make()
        return self._terms

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self._made()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decided, with all that it saw. Arrays have one entry a worker of `view`."""

    request_id: str
    policy: str
    at_ms: float
    plan: Plan
    view: FleetView
    unit: str
    """Unit of the scores: requests, tokens, ms, rank."""
    scores: Values
    """The least wins among the eligible ones."""
    terms: Mapping[str, Values] = field(default_factory=dict)
    note: str | None = None
    """Set when the policy could not do what its name says, and what it did instead."""
    plans: PlanRows | None = None
    """Plans that move KV; None: none was possible, or the policy knows of none."""

    @property
    def worker(self) -> WorkerId | None:
        """The worker that answers: the one that decodes."""
        return answering(self.plan)

    @property
    def prefill_worker(self) -> WorkerId | None:
        """The worker that computes the prompt for another one."""
        return self.plan.prefill if isinstance(self.plan, Disaggregate) else None

    @property
    def chosen_row(self) -> int | None:
        """Index of the chosen worker in the view."""
        worker = self.worker
        return None if worker is None else self.view.workers.index(worker)

    def candidates(self) -> list[Candidate]:
        """All workers of the view: best first, then those that were excluded."""
        exclusion = self.view.column(Column.EXCLUSION)
        cached = self.view.column(Column.CACHED_TOKENS)
        load = self.view.load
        rows = [
            Candidate(
                worker=worker,
                score=float(self.scores[i]) if exclusion[i] == 0 else None,
                terms={name: float(values[i]) for name, values in self.terms.items()},
                excluded=Exclusion(int(exclusion[i])).text if exclusion[i] else None,
                cached_tokens=int(cached[i]),
                load=int(load[i]),
            )
            for i, worker in enumerate(self.view.workers)
        ]
        chosen = self.worker
        rows.sort(key=lambda c: (c.score is None, c.score or 0.0, c.worker != chosen))
        return rows

    @property
    def chosen_score(self) -> float | None:
        """Of the plan that was chosen; None where nobody answers."""
        row = self.chosen_row
        if row is None:
            return None
        plans = self.plans
        if plans is not None and plans.comparable and plans.chosen >= 0:
            return float(plans.scores[plans.chosen])
        return float(self.scores[row])

    def score_of(self, plan: Plan) -> float | None:
        """Of any plan that was judged, in `unit`; None for one that was not."""
        worker = answering(plan)
        if worker is None or worker not in self.view.workers:
            return None
        if isinstance(plan, Aggregate) and plan.pull is None:
            return float(self.scores[self.view.workers.index(worker)])
        plans = self.plans
        if plans is None or not plans.comparable:
            return None
        numbers = [n for n in range(len(plans.scores)) if n not in plans.excluded and self.plan_of(n) == plan]
        return float(plans.scores[numbers[0]]) if numbers else None

    def plan_of(self, number: int) -> Plan:
        """One of `plans` by its number."""
        plans, workers = self.plans, self.view.workers
        if plans is None:
            raise IndexError("the decision has no plans that move KV")
        answers, prefill, source = int(plans.decode[number]), int(plans.prefill[number]), int(plans.source[number])
        held = int(self.view.table[Column.CACHED_TOKENS, source])
        pull = Pull(workers[source], held) if source >= 0 else None
        if prefill >= 0:
            return Disaggregate(workers[prefill], workers[answers], pull)
        return Aggregate(workers[answers], pull)

    def runner_up_plan(self) -> tuple[Plan, float] | None:
        """The best plan that was not chosen, and by how much it lost (in `unit`): less than 0 where it was better and
        the operator wants another kind."""
        score, row = self.chosen_score, self.chosen_row
        if score is None or row is None:
            return None
        plans = self.plans
        moved = plans is not None and plans.chosen >= 0
        best: tuple[Plan, float] | None = None
        for i in self.view.eligible_rows().tolist():
            # Where scores can't be compared, those of the workers still say who else could have answered.
            same = i == row and (not moved or (plans is not None and not plans.comparable))
            if not same and (best is None or float(self.scores[i]) < best[1]):
                best = Aggregate(self.view.workers[i]), float(self.scores[i])
        if plans is not None and plans.comparable:
            for number, other in enumerate(plans.scores.tolist()):
                if number != plans.chosen and number not in plans.excluded and (best is None or other < best[1]):
                    best = self.plan_of(number), other
        return None if best is None else (best[0], best[1] - score)

    def runner_up(self) -> tuple[WorkerId, float] | None:
        """The worker that answers by the best plan that was not chosen, and by how much that lost (in `unit`)."""
        best = self.runner_up_plan()
        worker = None if best is None else answering(best[0])
        return None if best is None or worker is None else (worker, best[1])
