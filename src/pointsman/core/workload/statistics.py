"""What a trace is like: rates, lengths, burstiness, sessions, reuse of prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.core.workload.reuse import Reuse, reuse
from pointsman.core.workload.trace import Trace, TraceRequest

CACHE_TOKENS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
"""Sizes of LRU caches whose share of found tokens is told."""
WORKING_SET_PARTS = (0.5, 0.9, 0.99)
_MS = 1000.0
_LONGEST_WINDOW_SHARE = 0.5
_WINDOWS_S = (1.0, 10.0, 60.0, 600.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of something."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Spread | None:
        """None of nothing. Percentiles are values that occur."""
        if not len(values):
            return None
        array = np.asarray(values, dtype=np.float64)
        p10, p50, p90, p99 = np.percentile(array, (10, 50, 90, 99), method="inverted_cdf").tolist()
        return cls(float(array.mean()), p10, p50, p90, p99, float(array.max()))


@dataclass(frozen=True, slots=True)
class Arriving:
    """When requests come."""

    duration_s: float
    """From the first to the last."""
    per_s: float | None
    """Mean; None of fewer than two, or all at once."""
    cv: float | None
    """Of times between arrivals; 1 is Poisson, more is burstier. None of fewer than three, or all at once."""
    peak_per_s: Mapping[str, float]
    """Most in any window of that many seconds, a second."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Requests that belong together."""

    count: int
    requests: Spread
    """Of one session."""
    following: int
    """Requests that wait for the answer to another one."""
    gap_s: Spread | None
    """Between that answer and them."""


@dataclass(frozen=True, slots=True)
class ReuseFigures:
    """What prefix caches would find, of all prompt tokens."""

    block_tokens: int
    share: float
    """In a cache that forgets nothing."""
    same_session_share: float
    """Of all prompt tokens: found, and last used by the same session."""
    share_by_cache_tokens: Mapping[int, float]
    """In one LRU cache of that size, through which all requests go."""
    cache_tokens_for: Mapping[str, int]
    """Size of the LRU cache that finds that part of `share`."""
    distinct_tokens: int
    """Of all different blocks."""
    request_share: Spread
    """Of one request's prompt, in a cache that forgets nothing."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one trace. What it doesn't know is None."""

    name: str
    source: str
    requests: int
    arriving: Arriving
    prompt_tokens: Spread
    output_tokens: Spread
    total_prompt_tokens: int
    total_output_tokens: int
    sessions: Sessions | None
    reuse: ReuseFigures | None
    models: Mapping[str, int]
    """Requests by model, tenant and priority; empty where all are alike."""
    tenants: Mapping[str, int]
    priorities: Mapping[int, int]


def statistics(trace: Trace, cache_tokens: Sequence[int] = CACHE_TOKENS) -> Statistics:
    """All figures of a trace that has at least one request."""
    requests = trace.requests
    prompts = np.array([request.prompt_tokens for request in requests], dtype=np.int64)
    outputs = np.array([request.output_tokens for request in requests], dtype=np.int64)
    prompt_spread, output_spread = Spread.of(prompts), Spread.of(outputs)
    if prompt_spread is None or output_spread is None:
        raise ValueError("a trace without requests has no statistics")
    return Statistics(
        name=trace.name,
        source=trace.source,
        requests=len(requests),
        arriving=_arriving(np.array([request.at_ms for request in requests])),
        prompt_tokens=prompt_spread,
        output_tokens=output_spread,
        total_prompt_tokens=int(prompts.sum()),
        total_output_tokens=int(outputs.sum()),
        sessions=_sessions(requests),
        reuse=_figures(reuse(trace), prompts, cache_tokens) if trace.block_tokens else None,
        models=_kinds([request.model for request in requests]),
        tenants=_kinds([request.tenant for request in requests]),
        priorities=_priorities(requests),
    )


def _arriving(times_ms: np.ndarray) -> Arriving:
    gaps_ms = np.diff(times_ms)
    duration_s = float(times_ms[-1] - times_ms[0]) / _MS
    if not duration_s:
        return Arriving(0.0, None, None, {})
    peaks = {
        f"{window_s:g}": _most_within(times_ms, window_s * _MS) / window_s
        for window_s in _WINDOWS_S
        if window_s <= duration_s * _LONGEST_WINDOW_SHARE
    }
    cv = float(gaps_ms.std() / gaps_ms.mean()) if len(gaps_ms) > 1 else None
    return Arriving(duration_s, len(gaps_ms) / duration_s, cv, peaks)


def _most_within(times_ms: np.ndarray, window_ms: float) -> int:
    ends = np.searchsorted(times_ms, times_ms + window_ms, side="left")
    return int((ends - np.arange(len(times_ms))).max())


def _sessions(requests: Sequence[TraceRequest]) -> Sessions | None:
    counts = Counter(request.session for request in requests if request.session is not None)
    spread = Spread.of(list(counts.values()))
    if spread is None:
        return None
    gaps_s = [request.gap_ms / _MS for request in requests if request.after is not None]
    return Sessions(len(counts), spread, len(gaps_s), Spread.of(gaps_s))


def _figures(found: Reuse, prompts: np.ndarray, cache_tokens: Sequence[int]) -> ReuseFigures:
    shares = Spread.of(found.reusable_tokens / prompts)
    assert shares is not None
    return ReuseFigures(
        block_tokens=found.block_tokens,
        share=found.share,
        same_session_share=found.same_session_tokens / found.prompt_tokens,
        share_by_cache_tokens={size: found.share_with(size) for size in cache_tokens},
        cache_tokens_for={f"{part:g}": found.cache_tokens_for(part) for part in WORKING_SET_PARTS},
        distinct_tokens=found.distinct_tokens,
        request_share=shares,
    )


def _kinds(names: list[str | None]) -> dict[str, int]:
    counts = Counter(names)
    return {} if set(counts) == {None} else {name or "": count for name, count in counts.most_common()}


def _priorities(requests: Sequence[TraceRequest]) -> dict[int, int]:
    counts = Counter(request.priority for request in requests)
    return {} if len(counts) == 1 else dict(sorted(counts.items()))
