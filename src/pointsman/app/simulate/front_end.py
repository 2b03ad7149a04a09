"""FrontEnd: tells the ledger and asks the policy exactly as the live front end does, at the same moments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.token_ratio import PRIOR_BYTES_PER_TOKEN
from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import USUAL_RULES, TransferRules
from pointsman.core.model.view import Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.contract import decided, failure
from pointsman.core.policies.policy import Policy, Timing
from pointsman.core.timing.fleet_times import FleetTimes, fleet_times
from pointsman.core.timing.step import StepCoefficients

TICK_MS = 1_000.0
Carried = Aggregate | Disaggregate
"""Plans that are carried out."""
OnDecision = Callable[[Request, Decision], None]


class FrontEnd:
    """One front end that sees all requests.

    Args:
        block_tokens: tokens a block of all keys; the approximate index is bounded by a worker's KV capacity in these.
        timing: step times by worker, as policies get them; None: the ledger learns them, from `priors`.
        on_decision: called with each request and the decision for it.
    """

    def __init__(
        self,
        policy: Policy,
        block_tokens: int,
        prefix_ttl_ms: float,
        timing: Timing | None,
        seed: int,
        on_decision: OnDecision | None = None,
        priors: Mapping[str, StepCoefficients] | None = None,
        guards: Guards = NO_GUARDS,
        transfer: TransferRules = USUAL_RULES,
    ) -> None:
        self.ledger = Ledger(
            text_block_bytes=int(block_tokens * PRIOR_BYTES_PER_TOKEN),
            prefix_ttl_ms=prefix_ttl_ms,
            step_priors=priors,
            guards=guards,
            transfer=transfer,
        )
        self._policy = policy
        self._timing = None if timing is None else fleet_times(timing)
        self._seed = seed
        self._on_decision = on_decision
        self._ticked_ms = 0.0

    def decide(self, request: Request, tried: Collection[WorkerId], now_ms: float) -> Carried | None:
        """The plan for a request, which the ledger knows at once; None: nobody can take it.

        None, too, for plans that are not carried out live either. Raises PolicyError when the policy fails or breaks
        its contract: live that costs one request, here the outcome would be worthless.
        """
        ledger = self.ledger
        if now_ms - self._ticked_ms >= TICK_MS:
            # Only views show what a tick changes, so one before the next view does for all that are due.
            self._ticked_ms = now_ms
            ledger.apply(ev.Tick(now_ms))
        view = ledger.view(request, tried)
        rng = decision_chance(self._seed, request.id)
        try:
            decision = decided(self._policy, request, view, self._times(), now_ms, rng)
        except Exception as error:
            raise PolicyError(failure(self._policy, request.id, error)) from error
        if self._on_decision is not None:
            self._on_decision(request, decision)
        plan = decision.plan
        if not isinstance(plan, Carried):
            return None
        ledger.apply(_dispatched(request, plan, view, now_ms))
        return plan

    def _times(self) -> FleetTimes:
        """Step times as they were given or learned, and what is known of links by now."""
        times, links = self._timing, self.ledger.timing.links
        if times is None:
            return self.ledger.timing
        if times.links is not links:
            times = self._timing = FleetTimes(times, links=links)
        return times


def _dispatched(request: Request, plan: Carried, view: FleetView, now_ms: float) -> ev.Dispatched:
    def held(worker: WorkerId) -> tuple[int, bool]:
        row = view.workers.index(worker)
        return int(view.table[Column.CACHED_TOKENS, row]), bool(view.table[Column.EXACT, row])

    if isinstance(plan, Aggregate):
        pull = None if plan.pull is None else ev.PullLeg(plan.pull.source, plan.pull.tokens)
        return ev.Dispatched(request.id, plan.worker, now_ms, *held(plan.worker), pull=pull)
    # A pull for the prefill leg is left out, as it is live.
    prefill = ev.PrefillLeg(plan.prefill, *held(plan.prefill))
    return ev.Dispatched(request.id, plan.decode, now_ms, *held(plan.decode), prefill=prefill)
