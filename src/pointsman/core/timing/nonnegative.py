"""Least squares with nothing below zero, for a handful of unknowns: times are sums of costs, none of them negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def solve_nonnegative(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 that makes xᵀ·matrix·x/2 − rightᵀ·x small: normal equations, shapes (n, n) and (n,).

    `matrix` must be symmetric and positive definite on what it says anything of. Unknowns that come out negative are
    held at zero and the others solved again, worst first, then released again where that helps: the active-set method,
    which ends after as many turns as there are unknowns, give or take.
    """
    count = len(right)
    held = np.zeros(count, dtype=bool)
    x: NDArray[np.float64] = np.zeros(count)
    for _ in range(3 * count + 3):
        free = np.flatnonzero(~held)
        x = np.zeros(count)
        if len(free):
            x[free] = np.linalg.solve(matrix[np.ix_(free, free)], right[free])
        worst = int(np.argmin(x))
        if x[worst] < 0:
            held[worst] = True
            continue
        pull = np.where(held, right - matrix @ x, 0.0)
        best = int(np.argmax(pull))
        if pull[best] <= 1e-9 * max(1.0, float(np.abs(right).max())):
            break
        held[best] = False
    x[x < 0] = 0.0
    return x


def fit_nonnegative(features: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 with the least squared *relative* error of `features @ x` against `target`; shapes (m, n) and (m,)."""
    scaled = features / target[:, None]
    # A trace of ridge keeps features that go together from being unsolvable.
    size = np.maximum(np.square(scaled).sum(axis=0), 1e-300)
    matrix = (scaled.T @ scaled) / np.sqrt(np.outer(size, size))
    x = solve_nonnegative(matrix + 1e-9 * np.eye(len(size)), scaled.sum(axis=0) / np.sqrt(size))
    fitted: NDArray[np.float64] = x / np.sqrt(size)
    return fitted
