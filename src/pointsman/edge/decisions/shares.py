"""Shares: how many of one model's requests each worker got, and whether chance would deal them like that."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.view import Exclusion
from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.telemetry.decision_row import DecisionRow

_DEALS = 500
_UNLIKELY = 0.01
"""Chance of such a maximum when requests are dealt at random, below which it is no chance."""
WORTH_RATIO = 1.2
"""Times its fair share from which on the busiest worker is worth a word."""
TOO_FEW = 0.75
"""Of its fair share, below which a worker is worth a word."""


@dataclass(frozen=True, slots=True)
class Skew:
    """One measure of load, over the workers."""

    most: float
    """Of the busiest worker, over its fair share."""
    most_by_chance: float
    """What only one in twenty random deals of the same requests exceeds."""
    most_chance: float
    """Share of random deals whose busiest worker gets as much."""
    least: float = 1.0
    """Of the idlest worker, over its fair share."""
    least_by_chance: float = 1.0
    least_chance: float = 1.0

    @property
    def too_much(self) -> bool:
        """For the busiest worker: it is no chance, and enough to matter."""
        return self.most_chance < _UNLIKELY and self.most >= WORTH_RATIO

    @property
    def too_little(self) -> bool:
        """For the idlest worker."""
        return self.least_chance < _UNLIKELY and self.least < TOO_FEW

    @property
    def is_skewed(self) -> bool:
        """One of the two."""
        return self.too_much or self.too_little


@dataclass(frozen=True, slots=True)
class Shares:
    """Arrays have one entry a worker."""

    workers: tuple[str, ...]
    fair: NDArray[np.float64]
    """Share that each should get, by the workers' weights; the sum is 1."""
    requests: NDArray[np.float64]
    busy_ms: NDArray[np.float64]
    """Sum of the times that requests were there."""
    rows: tuple[DecisionRow, ...]
    """Those that a worker took."""
    by_requests: Skew
    by_time: Skew

    def ratio(self, worker: int) -> float:
        """Requests that it got over its fair share."""
        return float(self.requests[worker] / max(1e-9, self.fair[worker] * len(self.rows)))


def shares(rows: Iterable[DecisionRow], facts: Mapping[str, WorkerFacts]) -> Shares:
    """Of the requests of one model. `facts`: of the workers that serve it, also of those that got nothing."""
    every = list(rows)
    known = {one.worker for row in every for one in row.candidates} | {row.worker for row in every if row.worker}
    workers = tuple(sorted((known | set(facts)) - _for_prompts_only(every)))
    index = {worker: number for number, worker in enumerate(workers)}
    taken = tuple(row for row in every if row.worker is not None)
    weights = np.array(_weights(workers, every, facts), dtype=np.float64)
    fair = weights / weights.sum() if weights.sum() > 0 else np.full(len(workers), 1 / max(1, len(workers)))
    where = np.array([index[row.worker or ""] for row in taken], dtype=np.intp)
    times = np.array([time_there_ms(row) for row in taken], dtype=np.float64)
    ones = np.ones(len(taken))
    return Shares(
        workers=workers,
        fair=fair,
        requests=np.bincount(where, ones, len(workers)).astype(np.float64),
        busy_ms=np.bincount(where, times, len(workers)).astype(np.float64),
        rows=taken,
        by_requests=_skew(where, ones, fair),
        by_time=_skew(where, times, fair),
    )


def _for_prompts_only(rows: Sequence[DecisionRow]) -> set[str]:
    """Workers that answer no request by their role: nothing of it is their share."""
    stands: dict[str, set[str | None]] = {}
    for row in rows:
        for one in row.candidates:
            stands.setdefault(one.worker, set()).add(one.excluded)
    answered = {row.worker for row in rows}
    return {worker for worker, reasons in stands.items() if reasons == {Exclusion.ROLE.text} and worker not in answered}


def _weights(workers: Sequence[str], rows: Sequence[DecisionRow], facts: Mapping[str, WorkerFacts]) -> list[float]:
    """Of each worker now; else, as a log has no facts, in the youngest decision that tells it."""
    told: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: row.at_ms):
        told.update((one.worker, one.weight or 1.0) for one in row.candidates)
    return [facts[worker].weight if worker in facts else told.get(worker, 1.0) for worker in workers]


def time_there_ms(row: DecisionRow) -> float:
    """From its dispatch to its last token."""
    last = row.last_token_ms if row.last_token_ms is not None else row.first_token_ms
    return 0.0 if last is None else max(0.0, last - (row.dispatched_ms or 0.0))


def median_itl_ms(rows: Sequence[DecisionRow], worker: str) -> float | None:
    """Of the answers of one worker; None for fewer than five."""
    seen = [row.itl_ms for row in rows if row.worker == worker and row.itl_ms is not None]
    return statistics.median(seen) if len(seen) >= 5 else None


def _skew(where: NDArray[np.intp], weights: NDArray[np.float64], fair: NDArray[np.float64]) -> Skew:
    """Each deal gives every request to one worker at random, by the fair shares; the same deals each time."""
    total, workers = float(weights.sum()), len(fair)
    if total <= 0 or workers < 2:
        return Skew(1.0, 1.0, 1.0)
    expected = np.maximum(fair * total, 1e-9)
    seen = np.bincount(where, weights, workers) / expected
    most, least = float(seen.max()), float(seen.min())
    rng = np.random.default_rng(0)
    edges = np.cumsum(fair)[:-1]
    deals = np.empty((_DEALS, 2))
    for number in range(_DEALS):
        dealt = np.searchsorted(edges, rng.random(len(weights)), side="right")
        shared = np.bincount(dealt, weights, workers) / expected
        deals[number] = shared.max(), shared.min()
    return Skew(
        most,
        float(np.quantile(deals[:, 0], 0.95)),
        (1 + int((deals[:, 0] >= most).sum())) / (1 + _DEALS),
        least,
        float(np.quantile(deals[:, 1], 0.05)),
        (1 + int((deals[:, 1] <= least).sum())) / (1 + _DEALS),
    )
