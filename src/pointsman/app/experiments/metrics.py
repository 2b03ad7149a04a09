"""Metrics: the measures of one simulated run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pointsman.app.experiments.comparison import Metrics
from pointsman.app.experiments.saturation import queue_growth
from pointsman.app.experiments.slo import Slo
from pointsman.app.simulate.outcome import Outcome

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_NONE = float("nan")


def metrics_of(outcome: Outcome, slo: Slo | None = None) -> Metrics:
    """All measures of a run; nan where nothing was measured, goodput without an SLO for example.

    Latencies are those of requests that got so far; whoever did not counts as failed, and against goodput. Rates are
    over the time from the first arrival to the last end.
    """
    seconds = max(outcome.ended_ms - outcome.started_ms, 1e-9) / 1_000
    done = outcome.done
    output_tokens = float(outcome.output_tokens[done].sum())
    prompt_tokens = float(outcome.prompt_tokens[done].sum())
    good = None if slo is None else float(np.count_nonzero(slo.met(outcome)))
    requests = max(len(outcome), 1)
    gpu_s = sum(worker.gpu_ms for worker in outcome.workers) / 1_000
    busy_ms = [worker.busy_ms for worker in outcome.workers]
    apart = outcome.prefill_worker >= 0
    growth = queue_growth(outcome.arrival_ms, _served_ms(outcome))
    return {
        **_latencies("ttft", outcome.ttft_ms),
        **_intervals(outcome),
        **_latencies("tpot", outcome.tpot_ms),
        **_latencies("e2e", outcome.e2e_ms),
        "output_tokens_s": output_tokens / seconds,
        "total_tokens_s": (prompt_tokens + output_tokens) / seconds,
        "requests_s": float(np.count_nonzero(done)) / seconds,
        "goodput_share": _NONE if good is None else good / requests,
        "goodput_requests_s": _NONE if good is None else good / seconds,
        "failed_share": float(np.count_nonzero(~done)) / requests,
        "hit_share": float(outcome.cached_tokens[done].sum()) / prompt_tokens if prompt_tokens else _NONE,
        "apart_share": float(np.count_nonzero(apart)) / requests,
        "fetched_share": float(np.count_nonzero((outcome.moved_tokens > 0) & ~apart)) / requests,
        "busy_imbalance": _most_over_mean(busy_ms),
        "token_imbalance": _most_over_mean([_computed_tokens(outcome, index) for index in range(len(busy_ms))]),
        "busy_cv": float(np.std(busy_ms) / np.mean(busy_ms)) if sum(busy_ms) else _NONE,
        "busy_share": float(np.mean(busy_ms)) / 1_000 / seconds,
        "gpu_s": gpu_s,
        "output_tokens_s_gpu": output_tokens / gpu_s if gpu_s else _NONE,
        "preemptions": float(sum(worker.preemptions for worker in outcome.workers)),
        "queue_growth": growth.share,
        "saturated": float(growth.growing),
    }


def _latencies(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return {f"{name}_{which}_ms": _NONE for which in ("mean", *_QUANTILES)}
    quantiles = np.quantile(known, list(_QUANTILES.values()))
    return {f"{name}_mean_ms": float(known.mean())} | {
        f"{name}_{which}_ms": float(value) for which, value in zip(_QUANTILES, quantiles, strict=True)
    }


def _intervals(outcome: Outcome) -> dict[str, float]:
    return {"itl_mean_ms": outcome.itl.mean_ms} | {
        f"itl_{which}_ms": outcome.itl.quantile_ms(share) for which, share in _QUANTILES.items()
    }


def _served_ms(outcome: Outcome) -> NDArray[np.float64]:
    """When each request left the queue: with its first token, or with an error."""
    return np.where(np.isnan(outcome.first_token_ms), outcome.end_ms, outcome.first_token_ms)


def _computed_tokens(outcome: Outcome, index: int) -> float:
    worker = outcome.workers[index]
    return float(worker.prompt_tokens - worker.cached_tokens + worker.output_tokens)


def _most_over_mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values) if values else 0.0
    return max(values) / mean if mean else _NONE
