"""Each shared beginning has its worker, whatever the load: what a hash of an oracle's key does."""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import Timing, decision, rejection


class HashOfGroup:
    """Groups are told apart by the first block of their prompts and dealt out to workers in turn as they appear."""

    name = "hash of the group (oracle key)"

    def __init__(self) -> None:
        self._turn: dict[int, int] = {}

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The group's worker."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        key = request.blocks.keys[0] if request.blocks.keys else 0
        turn = self._turn.setdefault(key, len(self._turn))
        row = int(rows[turn % len(rows)])
        scores = np.ones(len(view))
        scores[row] = 0
        return decision(self.name, request, view, now_ms, row, scores, "rank")
