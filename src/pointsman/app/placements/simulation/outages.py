"""Outages: when nodes fail, and when they are back; drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.app.placements.simulation.demand import HOUR_S
from pointsman.core.model.errors import PlacementError

MOST_OUTAGES = 1_000_000
"""That one run is made for."""


@dataclass(frozen=True, slots=True)
class Outages:
    """How nodes fail. Raises PlacementError for what can't be."""

    node_fails_every_h: float = 2_000.0
    """Mean time between failures of one node; 0: none ever fails."""
    repair_h: float = 4.0
    """Mean time until it is back."""

    def __post_init__(self) -> None:
        if not 0 <= self.node_fails_every_h < math.inf:
            raise PlacementError(f"node_fails_every_h is {self.node_fails_every_h}; 0 (never) or more is expected")
        if not 0 < self.repair_h < math.inf:
            raise PlacementError(f"repair_h is {self.repair_h}; a number above 0 is expected")

    def expected(self, nodes: int, hours: float) -> float:
        """About so many outages there are in that time."""
        return nodes * hours / (self.node_fails_every_h + self.repair_h) if self.node_fails_every_h else 0.0


@dataclass(frozen=True, slots=True)
class Outage:
    """One node is gone for a while, and with it all pods there."""

    node: str
    at_s: float
    back_s: float


def made_outages(
    outages: Outages, nodes: Sequence[str], until_s: float, rng: np.random.Generator
) -> tuple[Outage, ...]:
    """By time. Both times are drawn from exponential distributions."""
    if not outages.node_fails_every_h:
        return ()
    found = []
    for node in nodes:
        now_s = float(rng.exponential(outages.node_fails_every_h * HOUR_S))
        while now_s < until_s:
            repaired_s = now_s + float(rng.exponential(outages.repair_h * HOUR_S))
            back_s = max(repaired_s, math.nextafter(now_s, math.inf))
            found.append(Outage(node, now_s, back_s))
            now_s = back_s + float(rng.exponential(outages.node_fails_every_h * HOUR_S))
    return tuple(sorted(found, key=lambda outage: (outage.at_s, outage.node)))
