"""What every decision has to keep to, whoever wrote the policy, live, simulated and when it is made again."""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.policies.policy import Policy, Timing

_NUMBERS = "fiub"
"""Kinds of numpy's types."""


def decided(
    policy: Policy, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random
) -> Decision:
    """The policy's decision, checked. The view can't be written to from now on.

    Raises whatever the policy raises, and PolicyError for a decision that can't be carried out or recorded, and where
    the policy would end the process.
    """
    # Others decide on the same view, and it is kept as what the policy saw.
    view.table.flags.writeable = False
    try:
        made = policy.decide(request, view, timing, now_ms, rng)
    except SystemExit as error:
        raise PolicyError(f"it would end the process: {error!r}") from error
    check(made, view)
    return made


def check(made: object, view: FleetView) -> None:
    """Raises PolicyError that says what is wrong with a decision."""
    if not isinstance(made, Decision):
        raise PolicyError(f"it returned {type(made).__name__} where a Decision is wanted")
    if made.view is not view:
        raise PolicyError("its decision has another view than it was given")
    shape = (len(view),)
    told: list[tuple[str, object]] = [("scores", made.scores), *made.terms.items()]
    for name, values in told:
        if not isinstance(values, np.ndarray) or values.shape != shape or values.dtype.kind not in _NUMBERS:
            raise PolicyError(f"{name}: expected an array of {shape[0]} numbers, one a worker, not {_shown(values)}")
    worker = made.worker
    if worker is None:
        return
    if worker not in view.workers:
        raise PolicyError(f"it chose {worker}, which is no candidate")
    reason = int(view.table[Column.EXCLUSION, view.workers.index(worker)])
    if reason:
        raise PolicyError(f"it chose {worker}, which is excluded: {Exclusion(reason).text}")


def failure(policy: Policy, request_id: str, error: Exception) -> str:
    """One line for people on what `decided` raised."""
    told = str(error) if isinstance(error, PolicyError) else repr(error)
    return f"the policy {policy.name} failed on request {request_id}: {told}"


def _shown(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"one of shape {values.shape} and type {values.dtype}"
    return type(values).__name__
