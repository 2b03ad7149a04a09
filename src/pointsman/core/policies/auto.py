"""auto: `kv` for requests that can be looked up exactly at one worker at least, `prefix` for the others."""

from __future__ import annotations

import random

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.policy import Timing
from pointsman.core.policies.prefix import Prefix


class Auto:
    """Its decisions carry the name of the policy that made them."""

    name = "auto"

    def __init__(self) -> None:
        self._kv = Kv()
        self._prefix = Prefix()

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """Choose the policy, which chooses the worker."""
        policy = self._kv if view.column(Column.EXACT).any() else self._prefix
        return policy.decide(request, view, timing, now_ms, rng)
