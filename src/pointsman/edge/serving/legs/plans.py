"""What plans with two workers mean to the ledger, and what of them is open to one request."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from pointsman.core.ledger.events import PrefillLeg, PullLeg
from pointsman.core.model.decision import Decision
from pointsman.core.model.migration import Mechanism
from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import STAGE_PREFILL, Column, Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.pairs import pairs, taking_rows
from pointsman.edge.serving.exchange import Exchange


def for_this_request(view: FleetView, exchange: Exchange) -> FleetView:
    """The view where KV can't be moved for this request, or only from the worker that its header names."""
    if exchange.whole or exchange.responder.started:
        return replace(view, transfer=replace(view.transfer, mode=TransferMode.OFF))
    pinned = exchange.pinned_prefill
    if pinned is None or pinned not in view.workers:
        return view
    row = view.workers.index(pinned)
    stages, exclusion = view.table[Column.STAGES], view.table[Column.EXCLUSION]
    others = np.arange(len(view)) != row
    stages[others] &= ~STAGE_PREFILL
    if exclusion[row] == Exclusion.PINNED_ELSEWHERE:  # that is said of who answers
        exclusion[row] = Exclusion.ROLE
    return replace(view, transfer=replace(view.transfer, mode=TransferMode.ALWAYS))


def for_halves(view: FleetView, halves: Set[WorkerId]) -> FleetView:
    """The view where prefill and decode have to be apart, as some engines serve nothing but halves of requests."""
    if view.transfer.mode is not TransferMode.AUTO or halves.isdisjoint(view.workers):
        return view
    return replace(view, transfer=replace(view.transfer, mode=TransferMode.ALWAYS))


def for_a_whole(view: FleetView, halves: Set[WorkerId]) -> FleetView:
    """The view in which such engines get nothing."""
    table = view.table.copy()  # the policy has seen it
    exclusion = table[Column.EXCLUSION]
    rows = np.array([worker in halves for worker in view.workers])
    exclusion[rows & (exclusion == Exclusion.NONE)] = Exclusion.ROLE
    return replace(view, table=table, transfer=replace(view.transfer, mode=TransferMode.OFF))


def another_reader(view: FleetView, source: WorkerId) -> WorkerId | None:
    """A worker that can go on with what the source computed; None: nobody is there."""
    if source not in view.workers:
        return None
    rows = taking_rows(view)
    found = rows[pairs(view, np.array([view.workers.index(source)]), rows)[0]]
    return view.workers[int(found[0])] if len(found) else None


def in_halves(exchange: Exchange) -> bool:
    """Whether two engines that serve halves only can have it. Of a stream that has begun they say the whole again."""
    if exchange.whole:
        return False
    migration = exchange.migration
    return not exchange.responder.started or (migration is not None and migration.mechanism is Mechanism.REPLAY)


def for_one_worker(decision: Decision) -> Decision:
    """The same, but that the worker that answers computes all of it, whatever the policy wanted."""
    plan = decision.plan
    if isinstance(plan, Disaggregate):
        return replace(decision, plan=Aggregate(plan.decode))
    return replace(decision, plan=Aggregate(plan.worker)) if isinstance(plan, Aggregate) and plan.pull else decision


def legs_of(decision: Decision) -> tuple[PrefillLeg | None, PullLeg | None]:
    """What the ledger is told beside the worker that answers. A pull by a prefill leg is not carried out."""
    plan, view = decision.plan, decision.view
    if isinstance(plan, Disaggregate):
        row = view.workers.index(plan.prefill)
        cached = int(view.table[Column.CACHED_TOKENS, row])
        return PrefillLeg(plan.prefill, cached, bool(view.table[Column.EXACT, row])), None
    pull = plan.pull if isinstance(plan, Aggregate) else None
    return None, None if pull is None else PullLeg(pull.source, pull.tokens)
