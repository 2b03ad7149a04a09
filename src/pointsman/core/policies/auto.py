"""auto: what decides where nobody chose a policy: `cost`."""

from __future__ import annotations

import random

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.policy import Timing


class Auto:
    """Its decisions carry the name of the policy that made them."""

    name = "auto"
    makes_plans = True

    def __init__(self) -> None:
        self._cost = Cost()

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """As `cost` decides."""
        return self._cost.decide(request, view, timing, now_ms, rng)
