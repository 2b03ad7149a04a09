"""Requests that have nothing in common: arrivals and lengths only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pointsman.core.workload.generators.arrivals import Arrivals, arrival_times
from pointsman.core.workload.generators.distributions import Distribution, Lognormal, whole
from pointsman.core.workload.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Independent:
    """Settings."""

    arrivals: Arrivals
    prompt_tokens: Distribution = Lognormal(1000, 1.0, 1, 32_000)
    output_tokens: Distribution = Lognormal(250, 0.8, 1, 4000)
    requests: int | None = None
    duration_s: float | None = None


def independent(settings: Independent, rng: np.random.Generator) -> Trace:
    """Make it."""
    requests = tuple(
        TraceRequest(at_ms, whole(settings.prompt_tokens, rng), whole(settings.output_tokens, rng))
        for at_ms in arrival_times(settings.arrivals, rng, settings.requests, settings.duration_s)
    )
    return Trace("independent", requests, source="made: requests that have nothing in common")
