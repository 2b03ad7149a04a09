"""Policies that are one score a worker: the shared part."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from peers_policies.facts import Facts, Floats, facts
from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import Timing, decision, least_row, rejection


class Scored(ABC):
    """The eligible worker with the least score, a tie goes to anybody."""

    name: str
    unit = "rank"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """Score, choose, remember."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        scores = self.scores(request, view, facts(request, view), rows, now_ms)
        row = least_row(scores, rows, rng)
        self.chosen(request, view, row, now_ms)
        return decision(self.name, request, view, now_ms, row, scores, self.unit)

    @abstractmethod
    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        """One score a worker; `rows` are the eligible ones."""

    def chosen(self, request: Request, view: FleetView, row: int, now_ms: float) -> None:  # noqa: B027
        """For policies with a memory of their own."""


def best_match(facts: Facts, allowed: NDArray[np.bool_]) -> Floats:
    """Scores by which the longest match among `allowed` wins, of equally long ones the least busy worker."""
    # One matched token outweighs any batch.
    scores = facts.batch / 1e6 - facts.matched
    return np.where(allowed, scores, np.inf)


def only(rows: NDArray[np.intp], count: int) -> NDArray[np.bool_]:
    """A mask of `count` workers that is true at `rows`."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask
