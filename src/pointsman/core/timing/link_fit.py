"""LinkFit: floor and bandwidths of one direction between two machines, learned from its last transfers.

Times span decades, so what is fitted are logarithms: of the floor, and of the time a byte takes by class of size. A
transfer's time is the sum of both, so small ones teach the floor and large ones the bandwidth. Classes are thought
alike until something else is seen, and what nothing was seen of stays near the prior. Outliers count by how many they
are, not by how far off (Huber).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.timing.link_times import PRIOR, SIZE_CLASSES_BYTES, LinkEstimate, size_class
from pointsman.core.timing.spread import Spread

_CLASSES = len(SIZE_CLASSES_BYTES) + 1
_STATES = 1 + _CLASSES
"""The floor, then the classes."""
_SMALL_BYTES = 128 << 10
"""Up to here transfers are kept apart from the rest of their class: they show the floor."""
_KEPT = 10
"""Transfers of each size that are believed; older ones are forgotten."""
_AGEING = 0.85
"""Weight of a transfer for each later one of its size."""
_STRANGE = 3
"""Transfers of one size, all off to one side by more than twice, that mean that the link has changed."""
_STRANGE_LOG = math.log(2)

_FLOOR_DEVIATION = 2.0
"""Of priors' logarithms: 10 times as much is usual. Floors depend on software more than on the link."""
_COMMON_DEVIATION = 3.0
"""Of what all classes have in common: from 40 GB/s of a prior to 6 MB/s of a leased line it is 9."""
_OWN_DEVIATION = 0.3
"""Of what one class has for itself."""
_NOISE = 0.15
"""Of one transfer's time."""
_HUBER = 1.5
"""Deviations beyond which a transfer is an outlier."""
_ROUNDS = 25
_FITTED_AT_ONCE = 8
"""First transfers, before which all may be fitted again; later that waits until somebody asks."""
_EVIDENCE_KEPT = 1 - 1 / 64
_LOW = np.array([math.log(1e-6), *[math.log(1e-12)] * _CLASSES])
"""Of the floor in ms, and of ms a byte."""
_HIGH = np.array([math.log(1e7), *[math.log(1e3)] * _CLASSES])
_SIGNS = np.array([1.0, *[-1.0] * _CLASSES])

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Seen:
    size_bytes: float
    took_ms: float
    under_way: int


class LinkFit:
    """One direction between two machines."""

    __slots__ = ("_estimate", "_is_fitted", "_kept", "_prior", "_since_change", "_spread", "_values", "seen")

    def __init__(self, prior: LinkEstimate) -> None:
        self._prior = np.array([math.log(max(prior.floor_ms, 1e-6)), *(-math.log(s) for s in prior.bytes_per_ms)])
        self._values = self._prior
        self._kept: tuple[deque[_Seen], ...] = tuple(deque(maxlen=_KEPT) for _ in range(_STATES))
        """By class of size, small ones first; the last at the end."""
        self._spread = Spread(PRIOR.spread, window=64)
        self._estimate = prior
        self._is_fitted = True
        self._since_change = 0
        self.seen = 0.0

    def observe(self, size_bytes: float, took_ms: float, under_way: int = 0) -> None:
        """One transfer, which so many others shared the link with."""
        kept = self._kept[0 if size_bytes <= _SMALL_BYTES else 1 + size_class(size_bytes)]
        is_young = self._since_change <= _FITTED_AT_ONCE
        if is_young and len(kept) >= _STRANGE - 1:
            self._fit()
        if self._is_fitted or not is_young:  # else what is predicted is not what would have been answered
            self._spread.observe(self._estimate.ms(size_bytes, under_way), took_ms)
        self.seen = self.seen * _EVIDENCE_KEPT + 1
        self._since_change += 1
        kept.append(_Seen(size_bytes, took_ms, under_way))
        if len(kept) > _STRANGE and self._has_changed(kept):
            self._forget_before(kept)
        self._is_fitted = False

    @property
    def estimate(self) -> LinkEstimate:
        """What is known now."""
        self._fit()
        return self._estimate

    def _has_changed(self, kept: deque[_Seen]) -> bool:
        """The last few of this size were all off, to one side, from what the ones before say."""
        estimate = self._estimate
        last = [kept[-i] for i in range(1, _STRANGE + 1)]
        off = [math.log(one.took_ms / estimate.ms(one.size_bytes, one.under_way)) for one in last]
        return all(one > _STRANGE_LOG for one in off) or all(one < -_STRANGE_LOG for one in off)

    def _forget_before(self, kept: deque[_Seen]) -> None:
        """Older ones are of another link. What is larger, or smaller, may be as ever, unless it is the same part."""
        last = [kept[-i] for i in range(_STRANGE, 0, -1)]
        small = kept is self._kept[0]
        for group in self._kept[:1] if small else self._kept[1:]:
            group.clear()
        kept.extend(last)
        self._spread.clear()
        self._since_change = 0

    def _fit(self) -> None:
        if self._is_fitted:
            return
        table = self._table()
        starts = (self._values, *_guesses(self._values, *table[1:3]))
        self._values = self._descend(min(starts, key=lambda values: self._cost(values, *table)), *table)
        floor_ms, *speeds = np.exp(self._values * _SIGNS).tolist()
        self._estimate = LinkEstimate(
            floor_ms, (speeds[0], speeds[1], speeds[2], speeds[3]), self._spread.ratios[1], self.seen
        )
        self._is_fitted = True

    def _table(self) -> tuple[NDArray[np.intp], Numbers, Numbers, Numbers]:
        rows = [(one, _AGEING ** (len(kept) - i - 1)) for kept in self._kept for i, one in enumerate(kept)]
        slots = np.array([1 + size_class(one.size_bytes) for one, _ in rows], dtype=np.intp)
        shared = np.array([one.size_bytes * (1 + one.under_way) for one, _ in rows], dtype=np.float64)
        logs = np.log(np.array([one.took_ms for one, _ in rows], dtype=np.float64))
        return slots, shared, logs, np.array([weight for _, weight in rows], dtype=np.float64)

    def _cost(
        self, values: Numbers, slots: NDArray[np.intp], shared: Numbers, logs: Numbers, weights: Numbers
    ) -> float:
        off = np.abs(logs - np.log(np.exp(values[0]) + shared * np.exp(values[slots]))) / _NOISE
        losses = np.where(off <= _HUBER, off * off, _HUBER * (2 * off - _HUBER))
        away = values - self._prior
        return float(weights @ losses + away @ _PRECISION @ away)

    def _descend(
        self, values: Numbers, slots: NDArray[np.intp], shared: Numbers, logs: Numbers, weights: Numbers
    ) -> Numbers:
        """Levenberg and Marquardt's way down, each step of which lowers the cost."""
        cost, damping = self._cost(values, slots, shared, logs, weights), 1e-2
        rows = np.arange(len(slots))
        for _ in range(_ROUNDS):
            floor_ms, bytes_ms = np.exp(values[0]), shared * np.exp(values[slots])
            slopes = np.zeros((len(slots), _STATES))
            slopes[rows, slots] = bytes_ms / (floor_ms + bytes_ms)
            slopes[:, 0] = 1 - slopes[rows, slots]
            off = (logs - np.log(floor_ms + bytes_ms)) / _NOISE
            trust = weights * np.minimum(1.0, _HUBER / np.maximum(np.abs(off), 1e-9)) / _NOISE
            matrix = (slopes * (trust / _NOISE)[:, None]).T @ slopes + _PRECISION
            toward = slopes.T @ (trust * off) - _PRECISION @ (values - self._prior)
            step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), toward)
            tried = np.clip(values + step, _LOW, _HIGH)
            new_cost = self._cost(tried, slots, shared, logs, weights)
            if new_cost < cost:
                gained, values, cost, damping = cost - new_cost, tried, new_cost, damping / 5
                if gained < 1e-6 * (1 + cost):
                    break
            else:
                damping *= 8
                if damping > 1e8:
                    break
        return values


def _guesses(values: Numbers, shared: Numbers, logs: Numbers) -> tuple[Numbers, ...]:
    """Where the smallest transfer is all floor, where the largest has none, and both."""
    largest = int(np.argmax(shared))
    floor = float(np.clip(logs[int(np.argmin(shared))], _LOW[0], _HIGH[0]))
    a_byte = float(np.clip(logs[largest] - math.log(max(shared[largest], 1.0)), _LOW[1], _HIGH[1]))
    a_bytes = [a_byte] * _CLASSES
    return np.array([floor, *values[1:]]), np.array([values[0], *a_bytes]), np.array([floor, *a_bytes])


def _precision() -> Numbers:
    covariance = np.zeros((_STATES, _STATES))
    covariance[1:, 1:] = _COMMON_DEVIATION**2
    covariance += np.diag([_FLOOR_DEVIATION**2, *[_OWN_DEVIATION**2] * _CLASSES])
    return np.linalg.inv(covariance).astype(np.float64)


_PRECISION = _precision()
