"""FrontEnd: tells the ledger and asks the policy exactly as the live front end does, at the same moments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.token_ratio import PRIOR_BYTES_PER_TOKEN
from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.request import Request
from pointsman.core.model.stage import Stage
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.chance import decision_chance
from pointsman.core.policies.contract import decided, failure
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.policy import Policy, Timing
from pointsman.core.timing.fleet_times import fleet_times
from pointsman.core.timing.step import StepCoefficients

TICK_MS = 1_000.0
_OTHERWISE = LeastLoaded()
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
    ) -> None:
        self.ledger = Ledger(
            text_block_bytes=int(block_tokens * PRIOR_BYTES_PER_TOKEN),
            prefix_ttl_ms=prefix_ttl_ms,
            step_priors=priors,
            guards=guards,
        )
        self._policy = policy
        self._timing = None if timing is None else fleet_times(timing)
        self._seed = seed
        self._on_decision = on_decision
        self._ticked_ms = 0.0

    def decide(self, request: Request, stage: Stage, tried: Collection[WorkerId], now_ms: float) -> WorkerId | None:
        """The worker that the request goes to, which the ledger knows at once; None: nobody can take it.

        None, too, for plans that are not carried out live either. Where the policy declines to choose who goes on with
        a request, the least loaded worker does: its prompt is computed already. Raises PolicyError when the policy
        fails or breaks its contract: live that costs one request, here the outcome would be worthless.
        """
        ledger = self.ledger
        if now_ms - self._ticked_ms >= TICK_MS:
            # Only views show what a tick changes, so one before the next view does for all that are due.
            self._ticked_ms = now_ms
            ledger.apply(ev.Tick(now_ms))
        view = ledger.view(request, tried, stage=stage)
        rng = decision_chance(self._seed, request.id)
        timing = ledger.timing if self._timing is None else self._timing
        try:
            decision = decided(self._policy, request, view, timing, now_ms, rng)
        except Exception as error:
            raise PolicyError(failure(self._policy, request.id, error)) from error
        if decision.worker is None and stage is Stage.DECODE:
            decision = _OTHERWISE.decide(request, view, timing, now_ms, rng)
        if self._on_decision is not None:
            self._on_decision(request, decision)
        worker = decision.worker
        if worker is None:
            return None
        row = view.workers.index(worker)
        cached, exact = int(view.table[Column.CACHED_TOKENS, row]), bool(view.table[Column.EXACT, row])
        ledger.apply(ev.Dispatched(request.id, worker, now_ms, cached, exact))
        return worker
