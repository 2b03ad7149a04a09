"""One run of the capacity workload under one policy, and what of it is compared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from harness.processes import BenchmarkError
from harness.shared_prompts import STAGES, WARM_UP, Stages, staged
from peers_policies.costs import Additive, LMetric, Priced
from peers_policies.guarded import AibrixPrefix, Guard, SmgCacheAware
from peers_policies.llmd import LlmdEstimated, LlmdLoad, LlmdPrecise
from peers_policies.sticky import HashOfGroup
from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.policy import Policy
from pointsman.core.policies.power_of_two import PowerOfTwo
from pointsman.core.policies.prefix import Prefix
from pointsman.core.policies.random_choice import RandomChoice
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.timing.profiles import profile

PROFILE = "h100/qwen3-32b-tp2"
PODS = 8
MAX_NUM_SEQS, MAX_BATCHED_TOKENS = 1_024, 8_192
SATURATED_MS = 5_000.0
"""Mean TTFT above which a stage is past the knee."""

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "pointsman cost": Cost,
    "pointsman kv": Kv,
    "pointsman prefix": Prefix,
    "hash of the group (oracle key)": HashOfGroup,
    "llm-d precise 3/2/2": LlmdPrecise,
    "llm-d estimated 1/1/1": LlmdEstimated,
    "llm-d load": LlmdLoad,
    "SMG cache_aware (64, 1.5, .3)": SmgCacheAware,
    "AIBrix prefix (16, 2σ)": AibrixPrefix,
    "LMetric, queued included": LMetric,
    "additive prefill + decode blocks": Additive,
    "guard (1.1, 4)": Guard,
    "priced, λ = 1": lambda: Priced(profile(PROFILE).step, 1.0),
    "priced, λ = 100": lambda: Priced(profile(PROFILE).step, 100.0),
    "least requests": LeastLoaded,
    "power of two": PowerOfTwo,
    "round robin": RoundRobin,
    "random": RandomChoice,
}

BLIND = frozenset(
    {
        *("llm-d estimated 1/1/1", "llm-d load", "hash of the group (oracle key)"),
        *("least requests", "power of two", "round robin", "random"),
    }
)
"""They decide without what engines say of their caches, so nobody has to say it, which takes half of the time."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one simulation is given."""

    policy: str
    seed: int = 0
    popularity: str = "uniform"
    output_tokens: int = 500
    block_tokens: int = 48
    """Divides both parts of a prompt. Engines have 16: 1 % more tok/s at most, in twice the time."""
    kv_tokens: int = 307_328
    answers_cached: bool = False
    front_end_ms: float = 0.0
    metrics_every_ms: float = 0.0
    """0: the load of engines is read before each decision."""
    shuffle_ties: bool = False
    stages: tuple[tuple[float, float], ...] = (WARM_UP, *STAGES)


def setup(run: Run) -> Setup:
    """The published fleet; views are fresh and complete."""
    engine = dataclasses.replace(profile(PROFILE), kv_tokens=run.kv_tokens)
    return Setup(
        groups=(WorkerGroup(profile=engine, count=PODS),),
        block_tokens=run.block_tokens,
        max_num_seqs=MAX_NUM_SEQS,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        front_end_ms=run.front_end_ms,
        kv_events=run.policy not in BLIND,
        kv_event_delay_ms=0.0,
        metrics_every_ms=run.metrics_every_ms,
    )


def carry_out_run(run: Run) -> dict[str, Any]:
    """Simulate one run; a summary of each stage but the warm-up, and of all."""
    workload = staged(
        run.seed,
        popularity=run.popularity,
        output_tokens=run.output_tokens,
        stages=run.stages,
        answers_cached=run.answers_cached,
    )
    started = time.process_time()
    outcome = simulate(workload.trace, setup(run), POLICIES[run.policy](), seed=run.seed, shuffle_ties=run.shuffle_ties)
    spent_s = time.process_time() - started
    return {**summary(workload, outcome), "cpu_s": spent_s, "run": msgspec.to_builtins(run)}


def summary(workload: Stages, outcome: Outcome) -> dict[str, Any]:
    """Raises BenchmarkError if a stage had not ended when the next began, or a request did not end well."""
    stage_of = np.array(workload.stage)
    if not outcome.done.all():
        raise BenchmarkError(f"{int((~outcome.done).sum())} requests got no answer")
    ttft_ms, tpot_ms = outcome.ttft_ms, outcome.tpot_ms
    stages = []
    for number in range(1, len(workload.rates)):
        mine = stage_of == number
        ends_ms = float(outcome.end_ms[mine].max())
        if number + 1 < len(workload.starts_ms) and ends_ms > workload.starts_ms[number + 1]:
            raise BenchmarkError(f"stage {number} ends after the next one began: make DRAIN_MS longer")
        span_s = (ends_ms - workload.starts_ms[number]) / 1000
        stages.append(
            {
                "rate": workload.rates[number],
                "tok_s": float(outcome.output_tokens[mine].sum()) / span_s,
                "ttft_p90_s": float(np.percentile(ttft_ms[mine], 90)) / 1000,
                "ttft_mean_s": float(ttft_ms[mine].mean()) / 1000,
                "tpot_mean_ms": float(np.nanmean(tpot_ms[mine])),
                "span_s": span_s,
            }
        )
    counted = stage_of > 0
    knees = [stage["rate"] for stage in stages if stage["ttft_mean_s"] * 1000 > SATURATED_MS]
    return {
        "stages": stages,
        "tok_s": float(np.mean([stage["tok_s"] for stage in stages])),
        "tok_s_of_all": float(outcome.output_tokens[counted].sum()) / sum(stage["span_s"] for stage in stages),
        "ttft_p90_s": float(np.mean([stage["ttft_p90_s"] for stage in stages])),
        "ttft_mean_s": float(np.mean([stage["ttft_mean_s"] for stage in stages])),
        "ttft_p90_of_all_s": float(np.percentile(ttft_ms[counted], 90)) / 1000,
        "hit": float(outcome.cached_tokens[counted].sum() / outcome.prompt_tokens[counted].sum()),
        "knee": knees[0] if knees else None,
        "preemptions": int(sum(worker.preemptions for worker in outcome.workers)),
    }
