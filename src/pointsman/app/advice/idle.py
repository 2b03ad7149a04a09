"""What a request costs a worker that has nothing else to do: the best that any fleet can give it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pointsman.core.timing.profiles import Profile
from pointsman.core.workload.trace import Trace, TraceRequest

TYPICAL_BATCH = 16
"""Sequences that share a decode step where work is estimated without a simulation."""


def idle_ttft_ms(profile: Profile, prompt_tokens: float, max_batched_tokens: int) -> float:
    """Time to the first token of a prompt of which nothing is cached."""
    steps = max(1, math.ceil(prompt_tokens / max_batched_tokens))
    return profile.step.step_ms(0, 0, prompt_tokens, prompt_tokens**2) + (steps - 1) * profile.step.a_ms


def idle_tpot_ms(profile: Profile, context_tokens: float) -> float:
    """Time between two tokens of an answer that is computed alone."""
    return profile.step.step_ms(1, context_tokens, 0)


def work_ms(request: TraceRequest, prefill: Profile, decode: Profile) -> float:
    """Roughly the time of a busy worker that a request takes, with nothing cached."""
    prompt, output = request.prompt_tokens, request.output_tokens
    step = decode.step
    token_ms = step.a_ms / TYPICAL_BATCH + step.step_ms(1, prompt + output / 2, 0) - step.a_ms
    return prefill.step.step_ms(0, 0, prompt, prompt**2) - prefill.step.a_ms + output * token_ms


def works_ms(trace: Trace, prefill: Profile, decode: Profile) -> NDArray[np.float64]:
    """That of each request."""
    return np.array([work_ms(request, prefill, decode) for request in trace.requests], dtype=np.float64)


def quantile(values: Sequence[int], share: float) -> float:
    """A value that occurs."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), share, method="inverted_cdf"))
