"""LiveRollout: one rollout from its start to its end, with what came of its requests."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import msgspec

from pointsman.core.model.request import Request
from pointsman.core.policies.policy import Policy
from pointsman.core.trials.arms import Arm, By, Place
from pointsman.core.trials.comparison import ALPHA, Comparison, verdict
from pointsman.core.trials.rollout import Rollout
from pointsman.core.trials.tally import End, Result
from pointsman.core.trials.verdict import Judgement, Verdict
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.telemetry.histogram import ITL_BUCKETS_S, TTFT_BUCKETS_S, Histogram

MOST_ERRORS = 3
"""Decisions that a new policy may fail to make before it is rolled back. Each was made by the old one instead."""

MAX_REASON_CHARACTERS = 400
"""So that a reason fits into one message to other front ends."""

_log = logging.getLogger("pointsman.serving")


class LiveRollout:
    """Says which policy decides a request, takes what came of it, and ends by itself when the new one is worse.

    A change of its policies, share or way of splitting is another one: requests from before and after it do not mix.
    """

    def __init__(self, base: Policy, trial: Policy, order: RolloutOrder, *, watchers: int = 1) -> None:
        """`watchers`: front ends that each judge for themselves. Raises PolicyError for what can't be rolled out."""
        self._rollout = Rollout(base, trial, order.split())
        self._comparison = Comparison()
        self.order = order
        self.started_s = time.time()
        self.errors = 0
        """Decisions that the new policy failed to make."""
        self.without_session = 0
        """Requests that were split one by one, since they have no route key."""
        self.ttft_s = {arm: Histogram(TTFT_BUCKETS_S) for arm in Arm}
        self.itl_s = {arm: Histogram(ITL_BUCKETS_S) for arm in Arm}
        self.alpha = ALPHA / watchers
        """Chance that this front end ever rolls an equal policy back: all watchers together stay below ALPHA."""

    @property
    def running(self) -> bool:
        """Whether the new policy decides anything."""
        return self.order.ended is None

    @property
    def base(self) -> Policy:
        """The policy of all others."""
        return self._rollout.base

    @property
    def trial(self) -> Policy:
        """The new policy."""
        return self._rollout.trial

    @property
    def comparison(self) -> Comparison:
        """Of both arms."""
        return self._comparison

    def ticket(self, request: Request) -> Ticket | None:
        """Where a request belongs; None once the rollout has ended."""
        if not self.running:
            return None
        self.without_session += self.order.by is By.SESSION and request.route_key is None
        return Ticket(self, self._rollout.split.place(request))

    def failed(self, error: Exception) -> None:
        """The new policy could not decide."""
        self.errors += 1
        if self.errors >= MOST_ERRORS:
            self.end(f"its policy failed {self.errors} times, the last time with {error!r}")

    def add(self, place: Place, result: Result) -> None:
        """A request ended; those that end after a roll back no longer count."""
        if not self.running:
            return
        self._comparison.add(place, result)
        if result.ttft_ms is not None:
            self.ttft_s[place.arm].observe(result.ttft_ms / 1000)
        if result.itl_ms is not None:
            self.itl_s[place.arm].observe(result.itl_ms / 1000)

    def requests(self, arm: Arm) -> dict[End, int]:
        """Requests of an arm that ended, by how."""
        return self._comparison.sums.of(arm).ends

    def verdict(self) -> Verdict:
        """Whether the new policy is worse, as far as this front end knows."""
        return verdict(self._comparison.sums, self.order.worse_by, self.alpha)

    def look(self) -> None:
        """Roll back if the new policy is worse and that is wanted. Costs up to a millisecond; call it now and then."""
        if self.running and self.order.auto_rollback and self.requests(Arm.TRIAL):
            found = self.verdict()
            if found.judgement is Judgement.WORSE:
                self.end(f"it is worse: {found.why}")

    def end(self, why: str) -> None:
        """Roll back: the old policy decides all requests from now on. Does nothing where that is so already."""
        if not self.running:
            return
        # It is shown in logs and terminals, and comes from whoever can reach the admin port.
        why = "".join(char if char.isprintable() else " " for char in why[:MAX_REASON_CHARACTERS])
        self.order = msgspec.structs.replace(self.order, ended=why, ended_s=time.time())
        _log.warning(
            "rollout of %s at %.4g %% rolled back to %s after %d of its requests: %s",
            self.order.policy,
            100 * self.order.share,
            self.base.name,
            sum(self.requests(Arm.TRIAL).values()),
            why,
        )


@dataclass(frozen=True, slots=True)
class Ticket:
    """Where one request belongs in one rollout."""

    rollout: LiveRollout
    place: Place

    def ended(self, result: Result) -> None:
        """The request ended."""
        self.rollout.add(self.place, result)
