"""Rollout: two policies as one, live and simulated; a hash says which of them decides a request."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies import stages
from pointsman.core.policies.policy import Policy, Timing
from pointsman.core.trials.arms import Arm, Split


@dataclass(frozen=True, slots=True)
class Rollout:
    """A policy that leaves each request to one of two. Raises PolicyError when both are the same."""

    base: Policy
    trial: Policy
    split: Split

    def __post_init__(self) -> None:
        if self.base.name == self.trial.name:
            raise PolicyError(f"the policy {self.trial.name} decides already; a rollout needs another one")
        if self.split.trial != self.trial.name:
            raise PolicyError(f"a split for {self.split.trial} can't be used for {self.trial.name}")

    @property
    def name(self) -> str:
        """For example `auto+cost@5%`."""
        return f"{self.base.name}+{self.trial.name}@{100 * self.split.share:.10g}%"

    def of(self, arm: Arm) -> Policy:
        """The policy of an arm."""
        return self.trial if arm is Arm.TRIAL else self.base

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """As the policy of the request's arm decides; `Decision.policy` names that one."""
        return stages.decide(self.of(self.split.place(request).arm), request, view, timing, now_ms, rng)

    @property
    def makes_plans(self) -> bool:
        """Its policies are asked in stages themselves, where they have to be."""
        return True
