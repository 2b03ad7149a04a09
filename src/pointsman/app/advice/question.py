"""What is asked: this traffic, these GPUs, these limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pointsman.app.advice.fleets import Fleets
from pointsman.app.advice.idle import idle_tpot_ms, idle_ttft_ms, quantile
from pointsman.app.experiments.fleet import Profiles
from pointsman.app.experiments.slo import Slo
from pointsman.app.simulate.setup import Setup
from pointsman.core.workload.trace import Trace

TARGET = 0.95
"""Share of requests that have to be within the SLO for a fleet to be large enough."""
USUAL_TTFT_MS = 2_000.0
USUAL_TPOT_MS = 50.0
_ROOM = 2.5
"""An assumed limit is at least so many times what an idle worker takes."""


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that an answer depends on; the same question has the same answer."""

    trace: Trace
    profiles: Profiles
    fleets: Fleets
    setup: Setup
    """How engines are set up; its groups are replaced by those of each fleet."""
    slo: Slo
    slo_assumed: bool = False
    target: float = TARGET
    seeds: int = 5
    thorough: bool = False
    """Simulate the whole trace, not its busiest stretch."""


def assumed_slo(trace: Trace, profiles: Profiles, max_batched_tokens: int) -> Slo:
    """Limits for somebody who names none: the usual ones, or what long prompts and slow engines can do at all."""
    prompt_tokens = quantile([request.prompt_tokens for request in trace.requests], 0.99)
    context_tokens = quantile([request.prompt_tokens + request.output_tokens for request in trace.requests], 0.99)
    ttft_ms = _ROOM * idle_ttft_ms(profiles.prefill, prompt_tokens, max_batched_tokens)
    tpot_ms = _ROOM * idle_tpot_ms(profiles.decode, context_tokens)
    return Slo(max(USUAL_TTFT_MS, _round_up(ttft_ms)), max(USUAL_TPOT_MS, _round_up(tpot_ms)))


def _round_up(value_ms: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    if value_ms <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value_ms))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value_ms * (1 - 1e-9))
