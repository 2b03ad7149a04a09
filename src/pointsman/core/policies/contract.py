"""What every decision has to keep to, whoever wrote the policy, live, simulated and when it is made again."""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision, PlanRows, PlanRowsLater, TermsLater
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Aggregate, Disaggregate, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies import stages
from pointsman.core.policies.pairs import Rows, fetching_rows, giving_rows, pairs, source_rows, taking_rows
from pointsman.core.policies.policy import Policy, Timing

_NUMBERS = "fiub"
"""Kinds of numpy's types."""


def decided(
    policy: Policy, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random
) -> Decision:
    """The policy's decision, checked. The view can't be written to from now on.

    Policies that know of one worker only decide in two stages where there are workers for prompts (stages.py).

    Raises whatever the policy raises, and PolicyError for a decision that can't be carried out or recorded, and where
    the policy would end the process.
    """
    # Others decide on the same view, and it is kept as what the policy saw.
    view.table.flags.writeable = False
    try:
        made = stages.decide(policy, request, view, timing, now_ms, rng)
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
    if made.plans is not None and not isinstance(made.plans, PlanRowsLater):
        _check_plans(made, made.plans)
    worker = made.worker
    if worker is None:
        return
    if worker not in view.workers:
        raise PolicyError(f"it chose {worker}, which is no candidate")
    reason = int(view.table[Column.EXCLUSION, view.workers.index(worker)])
    if reason:
        raise PolicyError(f"it chose {worker}, which is excluded: {Exclusion(reason).text}")
    plan = made.plan
    if isinstance(plan, Aggregate):
        if plan.pull is not None:
            _check_pull(view, plan.pull, worker)
    elif isinstance(plan, Disaggregate):
        _check_pair(view, plan.prefill, giving_rows(view), worker, taking_rows(view), "compute the prompt for")
        if plan.pull is not None:
            _check_pull(view, plan.pull, plan.prefill)


def _check_plans(made: Decision, plans: PlanRows) -> None:
    count = len(plans.scores)
    # What waits to be looked at is not worked out to be checked.
    terms = {} if isinstance(plans.terms, TermsLater) else plans.terms
    told: list[tuple[str, object]] = [
        ("plans.prefill", plans.prefill),
        ("plans.decode", plans.decode),
        ("plans.source", plans.source),
        ("plans.moved_tokens", plans.moved_tokens),
        ("plans.scores", plans.scores),
        *((f"plans.{name}", values) for name, values in terms.items()),
    ]
    for name, values in told:
        if not isinstance(values, np.ndarray) or values.shape != (count,) or values.dtype.kind not in _NUMBERS:
            raise PolicyError(f"{name}: expected an array of {count} numbers, one a plan, not {_shown(values)}")
    most = len(made.view)
    for name, rows, least in (
        ("prefill", plans.prefill, -1),
        ("decode", plans.decode, 0),
        ("source", plans.source, -1),
    ):
        if count and (int(rows.min()) < least or int(rows.max()) >= most):
            raise PolicyError(f"plans.{name}: rows of {most} workers wanted, not {rows.min()} to {rows.max()}")
    if not -1 <= plans.chosen < count:
        raise PolicyError(f"plans.chosen is {plans.chosen}, and there are {count} plans")
    if plans.chosen >= 0 and plans.chosen in plans.excluded:
        raise PolicyError(f"it chose a plan that it excluded: {plans.excluded[plans.chosen]}")


def _check_pair(view: FleetView, giver: WorkerId, givers: Rows, taker: WorkerId, takers: Rows, does: str) -> None:
    if view.transfer.mode is TransferMode.OFF:
        raise PolicyError(f"it would move KV from {giver} to {taker}, which routing.kv_transfer: off forbids")
    if giver not in view.workers:
        raise PolicyError(f"it chose {giver}, which is no candidate")
    one, other = view.workers.index(giver), view.workers.index(taker)
    rows = np.array([one]), np.array([other])
    if one not in givers or other not in takers or not pairs(view, *rows)[0, 0]:
        raise PolicyError(f"{giver} can't {does} {taker}")


def _check_pull(view: FleetView, pull: Pull, worker: WorkerId) -> None:
    _check_pair(view, pull.source, source_rows(view), worker, fetching_rows(view), "pass cached blocks on to")
    held = int(view.table[Column.CACHED_TOKENS, view.workers.index(pull.source)])
    if not 0 < pull.tokens <= held:
        raise PolicyError(f"it would fetch {pull.tokens} tokens from {pull.source}, which holds {held}")


def failure(policy: Policy, request_id: str, error: Exception) -> str:
    """One line for people on what `decided` raised."""
    told = str(error) if isinstance(error, PolicyError) else repr(error)
    return f"the policy {policy.name} failed on request {request_id}: {told}"


def _shown(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"one of shape {values.shape} and type {values.dtype}"
    return type(values).__name__
