"""Decider: one decision for one request, told to the ledger and kept for people."""

from __future__ import annotations

import logging
import math
import time
from functools import partial

from pointsman.core.ledger.events import Dispatched
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.chance import decision_chance
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.explain import explanation_header
from pointsman.edge.serving.legs.legs import Legs
from pointsman.edge.serving.legs.plans import (
    for_a_whole,
    for_halves,
    for_one_worker,
    for_this_request,
    in_halves,
    legs_of,
)
from pointsman.edge.serving.legs.split import Split
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.telemetry.traffic import Traffic

MOST_NOTES = 50
"""Different ones that are counted each by itself."""
OTHER_NOTES = "others"

LIFTED_SAID_EVERY_MS = 60_000.0

_log = logging.getLogger("pointsman.serving")


class Decider:
    """Of one front end."""

    def __init__(
        self,
        ledger: Ledger,
        policy: ActivePolicy,
        traffic: Traffic,
        clock: Clock,
        seed: int,
        recorder: DecisionRecorder,
        legs: Legs,
    ) -> None:
        self._legs = legs
        self._ledger = ledger
        self._policy = policy
        self._traffic = traffic
        self._clock = clock
        self._seed = seed
        self._recorder = recorder
        self._say_lifted_ms = -math.inf
        self._notes_logged: set[tuple[str, str]] = set()

    def decide(self, exchange: Exchange, tried: set[WorkerId]) -> Decision:
        """Decide and tell the ledger at once: the next decision sees this one. Raises PolicyError."""
        started = time.perf_counter()
        rest, ledger = exchange.rest, self._ledger
        request = rest or exchange.request
        now_ms = self._clock()
        view = ledger.view(request, tried)
        if view.guards_lifted:
            self._guards_lifted(now_ms)
        timing = ledger.timing
        chance = partial(decision_chance, self._seed, request.id)
        halves = self._legs.halves
        if halves:
            view = for_halves(view, halves)
        apart = view
        if exchange.whole or exchange.responder.started or exchange.pinned_prefill is not None:
            view = for_this_request(view, exchange)
        decision, exchange.ticket = self._policy.decide(request, view, timing, now_ms, chance)
        plan, exchange.split, exchange.legs = decision.plan, None, None
        if not isinstance(plan, Aggregate) or plan.pull is not None:
            split = self._legs.split(exchange, decision)
            if isinstance(split, str):
                self._legs.refused(exchange, split)
                view = for_this_request(view, exchange)
                decision, exchange.ticket = self._policy.decide(request, view, timing, now_ms, chance)
                decision = for_one_worker(decision)
            else:
                exchange.split = split
        if halves and exchange.split is None and decision.worker in halves:
            view = for_a_whole(view, halves)
            decision, exchange.ticket = self._policy.decide(request, view, timing, now_ms, chance)
            decision = for_one_worker(decision)
            if decision.worker is None and exchange.responder.started and in_halves(exchange):
                found, ticket = self._policy.decide(request, apart, timing, now_ms, chance)
                split = self._legs.split(exchange, found)
                if isinstance(split, Split):
                    view, decision, exchange.ticket, exchange.split = apart, found, ticket, split
        worker = decision.worker
        if worker is not None:
            row = view.workers.index(worker)
            cached, exact = int(view.table[Column.CACHED_TOKENS, row]), bool(view.table[Column.EXACT, row])
            if exchange.split is None:
                ledger.apply(Dispatched(request.id, worker, now_ms, cached, exact, rest))
            else:
                prefill, pull = legs_of(decision)
                ledger.apply(Dispatched(request.id, worker, now_ms, cached, exact, rest, prefill, pull))
            exchange.dispatched_ms = now_ms
        exchange.decision = decision
        self._recorder.decided(exchange, decision, timing)
        self._traffic.decision_s.observe(time.perf_counter() - started)
        if self._policy.shadows.active:
            exchange.shadows = self._policy.shadows.decide(request, view, timing, now_ms, chance, decision)
        if decision.note is not None:
            self._note(decision.policy, decision.note)
        if exchange.explain:
            exchange.explanation = explanation_header(decision)
        return decision

    def _guards_lifted(self, now_ms: float) -> None:
        self._traffic.guards_lifted += 1
        if now_ms >= self._say_lifted_ms:
            self._say_lifted_ms = now_ms + LIFTED_SAID_EVERY_MS
            _log.warning(
                "a guard (routing.guards) would leave no worker and is lifted; counted in pointsman_guards_lifted_total"
            )

    def _note(self, policy: str, note: str) -> None:
        """Notes are labels of a metric, so a policy that says something else each time is cut off."""
        if (policy, note) not in self._notes_logged and len(self._notes_logged) >= MOST_NOTES:
            note = OTHER_NOTES
        self._traffic.notes[policy, note] += 1
        if (policy, note) not in self._notes_logged:
            self._notes_logged.add((policy, note))
            _log.warning("policy %s: %s (said once; counted in pointsman_policy_fallbacks_total)", policy, note)
