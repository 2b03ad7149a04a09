"""What the traffic itself says, before anything is simulated: reuse, working set, what no fleet can change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pointsman.app.advice.excerpt import Excerpt
from pointsman.app.advice.fleets import Fleet
from pointsman.app.advice.idle import idle_tpot_ms, idle_ttft_ms
from pointsman.app.advice.question import Question
from pointsman.core.workload.reuse import Reuse, reuse
from pointsman.core.workload.trace import Trace

WORKING_SET = 0.9
"""The cache that finds that part of what one that forgets nothing finds is called the working set."""
NO_REUSE = 0.02
"""Below that share of prompt tokens, prompts have nothing in common that is worth a cache."""


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Of the whole trace; shares are of its prompt tokens."""

    share: float
    """Found by a cache that forgets nothing."""
    share_in_stretch: float
    """The same for the simulated stretch alone, whose caches begin cold."""
    share_of_fleet: float
    """Found by one cache as large as those of all workers together: the best that any routing could do."""
    share_of_worker: float
    """Found by one as large as a single worker's, if all requests went through it."""
    working_set_tokens: int
    working_set_bytes: float
    """KV that finds `WORKING_SET` of `share`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Facts about a question's traffic."""

    requests: int
    duration_s: float
    requests_s: float
    prompt_tokens_mean: float
    output_tokens_mean: float
    models: int
    """Different ones that requests ask for."""
    caches: CacheFigures | None
    """None: the trace does not say what prompts have in common."""
    hopeless_share: float
    """Requests that miss the SLO even on a worker that has nothing else to do and nothing cached."""
    idle_ttft_p99_ms: float


def traffic(question: Question, excerpt: Excerpt, fleet: Fleet) -> Traffic:
    """Look at the whole trace, and at the stretch that is simulated for what simulations can show of it."""
    trace = question.trace
    prompts = np.array([request.prompt_tokens for request in trace.requests])
    outputs = np.array([request.output_tokens for request in trace.requests])
    idle = _idle_ttfts(question, excerpt.trace)
    return Traffic(
        requests=len(trace),
        duration_s=trace.duration_ms / 1_000,
        requests_s=(len(trace) - 1) / trace.duration_ms * 1_000 if trace.duration_ms else 0.0,
        prompt_tokens_mean=float(prompts.mean()),
        output_tokens_mean=float(outputs.mean()),
        models=len({request.model for request in trace.requests}),
        caches=_caches(trace, excerpt, fleet),
        hopeless_share=_hopeless(question, excerpt.trace, idle),
        idle_ttft_p99_ms=float(np.quantile(idle, 0.99)),
    )


def _caches(trace: Trace, excerpt: Excerpt, fleet: Fleet) -> CacheFigures | None:
    if not trace.block_tokens:
        return None
    found: Reuse = reuse(trace)
    in_stretch = found.share if excerpt.whole else reuse(excerpt.trace).share
    tokens = found.cache_tokens_for(WORKING_SET)
    kv_bytes = max(group.profile.kv_bytes_per_token for group in fleet.groups)
    return CacheFigures(
        share=found.share,
        share_in_stretch=in_stretch,
        share_of_fleet=found.share_with(fleet.kv_tokens),
        share_of_worker=found.share_with(fleet.kv_tokens / fleet.workers),
        working_set_tokens=tokens,
        working_set_bytes=float(tokens) * kv_bytes,
    )


def _idle_ttfts(question: Question, trace: Trace) -> np.ndarray:
    budget = question.setup.max_batched_tokens
    profile = question.profiles.prefill
    return np.array([idle_ttft_ms(profile, request.prompt_tokens, budget) for request in trace.requests])


def _hopeless(question: Question, trace: Trace, idle: np.ndarray) -> float:
    slo = question.slo
    tpot = np.array([idle_tpot_ms(question.profiles.decode, request.prompt_tokens) for request in trace.requests])
    outputs = np.array([request.output_tokens for request in trace.requests])
    missed = np.zeros(len(trace), dtype=bool)
    if slo.ttft_ms is not None:
        missed |= idle > slo.ttft_ms
    if slo.tpot_ms is not None:
        missed |= (outputs > 1) & (tpot > slo.tpot_ms)
    if slo.e2e_ms is not None:
        missed |= idle + (outputs - 1) * tpot > slo.e2e_ms
    return float(missed.mean())
