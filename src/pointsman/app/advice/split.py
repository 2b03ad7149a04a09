"""Prefill and decode apart: which ratio is best, and how far it carries."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.app.advice.fleets import Fleet
from pointsman.app.advice.laboratory import Case, Laboratory

_LOOKS = 5
"""Ratios that are tried first, spread over all."""


def best_split(laboratory: Laboratory, splits: Sequence[Fleet], policy: str) -> Fleet:
    """The ratio with the most requests within the SLO, among equals the fastest answers, under the first seed.

    Some ratios first, then those around the best, closer and closer.
    """
    count = len(splits)
    looks = min(_LOOKS, count)
    tried = sorted({round(number * (count - 1) / max(looks - 1, 1)) for number in range(looks)})
    stride = max(1, (count - 1) // max(looks - 1, 1))
    known: dict[int, tuple[float, float]] = {}
    while True:
        cases = {number: Case(policy, splits[number]) for number in tried}
        laboratory.measure((case, 0) for case in cases.values())
        for number, case in cases.items():
            metrics = laboratory.metrics(case, 0)
            assert metrics is not None
            e2e_ms = metrics["e2e_mean_ms"]
            known[number] = (metrics["goodput_share"], -e2e_ms if e2e_ms == e2e_ms else float("-inf"))
        best = max(known, key=lambda number: known[number])
        stride = max(1, stride // 2)
        tried = [number for number in (best - stride, best + stride) if 0 <= number < count and number not in known]
        if not tried and stride == 1:
            return splits[best]
