"""Runs of the cost policy beside others on recorded traffic, and what of them is compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from harness import capacity_runs
from harness.data import data_file
from harness.mooncake import conversation_trace
from harness.shared_prompts import staged
from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import FleetView
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.policy import Policy, Timing, decision, least_row, rejection
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.cut import kept_only
from pointsman.core.workload.generators.arrivals import Poisson
from pointsman.core.workload.scale import restart_sessions
from pointsman.core.workload.trace import Trace
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.source import ReadOptions

TERMS = ("ttft_ms", "completion_ms", "slowdown_ms", "eviction_ms", "placement_ms")
ABLATED = "cost without "
MOST_TOKENS = 250_000
"""Prompt and answer of an agent's request: few have more, and not every engine takes them."""
LONGEST_GAP_MS = 600_000.0
"""Between two requests of a session: what comes after more than that is another day's work."""
POPULARITIES = ("uniform", "zipf")
PROMISED = "promised"
"""Tenant of the requests that something is promised to."""
LIGHT_WEIGHT = 0.5


class Ablated:
    """The cost policy with one of its terms left out."""

    def __init__(self, term: str) -> None:
        self.name = ABLATED + term
        self._term = term
        self._cost = Cost()

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        made = self._cost.decide(request, view, timing, now_ms, rng)
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        scores = made.scores - made.terms.get(self._term, 0.0)
        return decision(self.name, request, view, now_ms, least_row(scores, rows, rng), scores, "ms", made.terms)


def policy_of(name: str) -> Policy:
    """By its name here: one of the product, one of the peers', or the cost policy without a term."""
    if name.startswith(ABLATED):
        return Ablated(name.removeprefix(ABLATED))
    if name in capacity_runs.POLICIES:
        return capacity_runs.POLICIES[name]()
    return PolicyRegistry().get(name)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A recorded workload and the fleet that gets it."""

    trace: Callable[[int], Trace]
    """By the seed of what is drawn of it."""
    profile: str
    workers: int
    block_tokens: int | None = None
    promise: Slo | None = None
    """Of every second session, or request where there are none."""
    light: int = 0
    """So many of the workers have LIGHT_WEIGHT instead of 1."""


def _mooncake(seed: int) -> Trace:
    return conversation_trace()


def _agentic(seed: int) -> Trace:
    """A hundred sessions of coding agents that begin about every 20 s, with the pauses that were recorded."""
    whole = read_trace(data_file("agentic/claude_code_sessions.jsonl")).trace
    names = list(dict.fromkeys(request.session for request in whole.requests if request.session is not None))
    chosen = set(random.Random(seed).sample(names, 100))
    part = _short_enough(whole, [n for n, request in enumerate(whole.requests) if request.session in chosen])
    return restart_sessions(part, Poisson(1 / 20), np.random.default_rng(seed))


def _short_enough(trace: Trace, positions: list[int]) -> Trace:
    """These requests, of each session those before its first that is longer than MOST_TOKENS or comes after a pause."""
    ended: set[str | None] = set()
    kept = []
    for position in positions:
        request = trace.requests[position]
        if request.prompt_tokens + request.output_tokens > MOST_TOKENS or request.gap_ms > LONGEST_GAP_MS:
            ended.add(request.session)
        if request.session not in ended:
            kept.append(position)
    return kept_only(trace, kept, 0.0)


def _servegen(seed: int) -> Trace:
    """Half a minute of short chats that share nothing, about 270 a second."""
    path = data_file("servegen/language/m-small")
    return read_trace(path, None, ReadOptions(seed=seed, start_s=36_000, duration_s=30)).trace


TRAFFIC: Mapping[str, Traffic] = {
    "Mooncake conversation, 8 workers": Traffic(_mooncake, "h100/llama-70b-tp4", 8),
    "Mooncake conversation, 4 workers": Traffic(_mooncake, "h100/llama-70b-tp4", 4),
    "agentic, 4 workers": Traffic(_agentic, "h100/qwen3-32b-tp4", 4, 512),
    "ServeGen m-small, 2 workers": Traffic(_servegen, "h100/llama-8b", 2),
}
WISHES: Mapping[str, tuple[Traffic, str]] = {
    "Mooncake conversation, 4 workers, promises": (
        Traffic(_mooncake, "h100/llama-70b-tp4", 4, promise=Slo(ttft_ms=1_500, tpot_ms=35)),
        "slo_ms",
    ),
    "agentic, 4 workers, promises": (
        Traffic(_agentic, "h100/qwen3-32b-tp4", 4, 512, promise=Slo(ttft_ms=500, tpot_ms=18)),
        "slo_ms",
    ),
    "Mooncake conversation, 8 workers, weights": (Traffic(_mooncake, "h100/llama-70b-tp4", 8, light=4), "weight_ms"),
    "ServeGen m-small, 2 workers, weights": (Traffic(_servegen, "h100/llama-8b", 2, light=1), "weight_ms"),
}
"""Traffic and fleets with what no recorded log tells: promises and weights; and the term that is there for it."""


class QualityRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one simulation is given: traffic of this page, or a popularity of the capacity workload."""

    traffic: str
    policy: str
    seed: int = 0
    learn_times: bool = False
    compared: bool = False
    """Predictions are compared with what came true."""


@dataclass(slots=True)
class Predicted:
    """What the cost policy predicted of the workers that it chose, by request."""

    ttft_ms: dict[str, float] = field(default_factory=dict)
    decode_ms: dict[str, float] = field(default_factory=dict)
    positive: dict[str, int] = field(default_factory=dict)
    """Term → decisions in which it was above 0 for the worker chosen or another one."""

    def __call__(self, request: Request, made: Decision) -> None:
        row = made.chosen_row
        if row is None or "ttft_ms" not in made.terms:
            return
        self.ttft_ms[request.id] = float(made.terms["ttft_ms"][row])
        self.decode_ms[request.id] = float(made.terms["completion_ms"][row] - made.terms["ttft_ms"][row])
        for name, values in made.terms.items():
            if (np.asarray(values) > 0).any():
                self.positive[name] = self.positive.get(name, 0) + 1


def carry_out_quality(run: QualityRun) -> dict[str, Any]:
    """Simulate, and sum up. Capacity runs have tok/s over their stages, others over the whole time."""
    if run.traffic in POPULARITIES:
        return _capacity(run)
    traffic = WISHES[run.traffic][0] if run.traffic in WISHES else TRAFFIC[run.traffic]
    trace = traffic.trace(run.seed)
    if traffic.promise is not None:
        trace = _half_promised(trace)
    ordinary = WorkerGroup(profile=profile(traffic.profile), count=traffic.workers - traffic.light)
    setup = Setup(
        groups=(ordinary, replace(ordinary, count=traffic.light, weight=LIGHT_WEIGHT))
        if traffic.light
        else (ordinary,),
        block_tokens=traffic.block_tokens,
        learn_times=run.learn_times,
        slo_of_tenants={} if traffic.promise is None else {PROMISED: traffic.promise},
    )
    started = time.process_time()
    predicted = Predicted()
    outcome = simulate(
        trace,
        setup,
        policy_of(run.policy),
        seed=run.seed,
        shuffle_ties=True,
        on_decision=predicted if run.compared else None,
    )
    done = outcome.done
    ttft_ms, span_ms = outcome.ttft_ms[done], outcome.ended_ms - outcome.started_ms
    found = {
        "requests": len(outcome),
        "failed": int((~done).sum()),
        "tok_s": float(outcome.output_tokens.sum()) / span_ms * 1000,
        "ttft_mean_ms": float(ttft_ms.mean()),
        "ttft_p99_ms": float(np.percentile(ttft_ms, 99)),
        "tpot_mean_ms": float(np.nanmean(outcome.tpot_ms[done])),
        "e2e_mean_ms": float(outcome.e2e_ms[done].mean()),
        "hit": float(outcome.cached_tokens.sum() / outcome.prompt_tokens.sum()),
    }
    if run.compared:
        ids = [f"r{number}" for number in range(len(outcome))]
        found |= compared(predicted, ids, outcome.ttft_ms, outcome.e2e_ms - outcome.ttft_ms, done)
    if run.traffic in WISHES:
        found |= _wishes(traffic, trace, outcome)
    return {**found, "cpu_s": time.process_time() - started, "run": msgspec.to_builtins(run)}


def _half_promised(trace: Trace) -> Trace:
    """Every second session, or request where there are none, becomes the tenant's that something is promised to."""
    places: dict[str | int, int] = {}
    requests = []
    for position, request in enumerate(trace.requests):
        place = places.setdefault(position if request.session is None else request.session, len(places))
        requests.append(replace(request, tenant=PROMISED if place % 2 else None))
    return replace(trace, requests=requests)


def _wishes(traffic: Traffic, trace: Trace, outcome: Outcome) -> dict[str, float]:
    """How far promises were kept, what that cost those without one, and what light workers got."""
    found: dict[str, float] = {}
    promise = traffic.promise
    if promise is not None:
        promised = np.array([request.tenant == PROMISED for request in trace.requests])
        late = outcome.ttft_ms > (promise.ttft_ms or np.inf)
        slow = outcome.tpot_ms > (promise.tpot_ms or np.inf)
        kept = outcome.done & ~late & ~slow
        found["kept"] = float(kept[promised].mean())
        found["others_e2e_mean_ms"] = float(outcome.e2e_ms[outcome.done & ~promised].mean())
    if traffic.light:
        light = outcome.worker >= traffic.workers - traffic.light
        computed = outcome.prompt_tokens - outcome.cached_tokens + outcome.output_tokens
        found["light_requests"] = float(light.mean())
        found["light_tokens"] = float(computed[light].sum() / computed.sum())
    return found


def _capacity(run: QualityRun) -> dict[str, Any]:
    capacity = capacity_runs.Run(policy=run.policy, popularity=run.traffic, seed=run.seed)
    workload = staged(run.seed, popularity=run.traffic)
    started = time.process_time()
    predicted = Predicted()
    outcome = simulate(
        workload.trace,
        capacity_runs.setup(capacity),
        policy_of(run.policy),
        seed=run.seed,
        on_decision=predicted if run.compared else None,
    )
    summary = capacity_runs.summary(workload, outcome)
    found = {
        "requests": len(outcome),
        "failed": 0,
        "tok_s": summary["tok_s_of_all"],
        "ttft_mean_ms": float(outcome.ttft_ms.mean()),
        "ttft_p99_ms": float(np.percentile(outcome.ttft_ms, 99)),
        "tpot_mean_ms": float(np.nanmean(outcome.tpot_ms)),
        "e2e_mean_ms": float(outcome.e2e_ms.mean()),
        "hit": summary["hit"],
    }
    if run.compared:
        ids = [f"r{number}" for number in range(len(outcome))]
        found |= compared(predicted, ids, outcome.ttft_ms, outcome.e2e_ms - outcome.ttft_ms, outcome.done)
    return {**found, "cpu_s": time.process_time() - started, "run": msgspec.to_builtins(run)}


def compared(
    predicted: Predicted,
    ids: list[str],
    ttft_ms: np.ndarray[Any, Any],
    decode_ms: np.ndarray[Any, Any],
    done: np.ndarray[Any, Any],
) -> dict[str, Any]:
    """By tenths of what was predicted: medians of predicted and observed, and the 10th and 90th percentile of these."""
    tables = {}
    for name, said, came in (("ttft", predicted.ttft_ms, ttft_ms), ("decode", predicted.decode_ms, decode_ms)):
        known = [(said[one], float(came[n])) for n, one in enumerate(ids) if done[n] and one in said]
        pairs = np.array(sorted(known)).reshape(-1, 2)
        tables[name] = [
            [float(np.median(part[:, 0])), *(float(q) for q in np.percentile(part[:, 1], [10, 50, 90]))]
            for part in np.array_split(pairs, 10)
            if len(part)
        ]
    return {"calibration": tables, "positive": predicted.positive}
