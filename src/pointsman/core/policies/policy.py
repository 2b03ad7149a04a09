"""The protocol of policies, and what they share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision, Values
from pointsman.core.model.plan import Aggregate, Reject
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.timing.worker_times import WorkerTimes

Timing = Mapping[str, WorkerTimes]
"""Step times by worker id, for workers whose times are known."""
NO_TIMING: Timing = {}

RETRY_AFTER_MS = 1_000.0


class Policy(Protocol):
    """Chooses a plan for one request. Pure: what it has to remember is in the view, chance comes from `rng`.

    One that makes plans that move KV (`Disaggregate`, `Pull`) says so by an attribute `makes_plans = True`. The others
    are asked twice where there are workers for prompts only: core/policies/stages.py.
    """

    @property
    def name(self) -> str:
        """The name that configurations use."""
        ...

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The plan and why. Must choose an eligible worker of the view, or `Reject` when there is none."""
        ...


def decision(
    policy: str,
    request: Request,
    view: FleetView,
    now_ms: float,
    row: int,
    scores: Values,
    unit: str,
    terms: Mapping[str, Values] | None = None,
    note: str | None = None,
) -> Decision:
    """A decision for the worker in `row`."""
    return Decision(
        request_id=request.id,
        policy=policy,
        at_ms=now_ms,
        plan=Aggregate(view.workers[row]),
        view=view,
        unit=unit,
        scores=scores,
        terms=terms or {},
        note=note,
    )


def rejection(policy: str, request: Request, view: FleetView, now_ms: float) -> Decision:
    """No worker of the view is eligible; the reasons are in the view."""
    return Decision(
        request_id=request.id,
        policy=policy,
        at_ms=now_ms,
        plan=Reject("no worker can take the request", RETRY_AFTER_MS),
        view=view,
        unit="none",
        scores=np.zeros(len(view)),
    )


def lowest(values: NDArray[np.float64]) -> float:
    """Of at least one. By its place, as that takes a quarter of the time of numpy's reduction of few values."""
    return float(values[values.argmin()])


def highest(values: NDArray[np.float64]) -> float:
    """The same."""
    return float(values[values.argmax()])


def least_row(values: NDArray[np.float64] | NDArray[np.int64], rows: NDArray[np.intp], rng: random.Random) -> int:
    """The row with the least value among `rows`; a tie goes to any of them with equal chance."""
    chosen = values[rows]
    first = chosen.argmin()
    equal = chosen == chosen[first]
    if np.count_nonzero(equal) == 1:
        return int(rows[first])
    best = rows[equal]
    return int(best[rng.randrange(len(best))])
