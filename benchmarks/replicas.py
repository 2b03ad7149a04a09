"""Several front ends before one fleet: what they find in caches beside one, how even a burst is, what talking costs.

usage: scripts/bench replicas [--quick] [--jobs N]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness import report
from harness.command import carry_out
from harness.pool import in_parallel
from harness.processes import BenchmarkError
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.replica import ReplicaNews
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.generators.arrivals import Poisson
from pointsman.core.workload.generators.chat import Chat, chat
from pointsman.core.workload.generators.distributions import Fixed, Lognormal
from pointsman.core.workload.generators.shared_prefix import Order, SharedPrefix, shared_prefix
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.cluster.replicas.ledger_news import decode_news, encode_news

PAGE = Path(__file__).resolve().parent.parent / "docs" / "replicas.md"
WORKERS = 8
CASES: Mapping[str, tuple[int, float | None]] = {
    "1": (1, None),
    "3, 20 ms": (3, 20.0),
    "3, 100 ms": (3, 100.0),
    "3, silent": (3, None),
}
"""Front ends, and until the others know what one did."""
POLICIES = ("prefix", "kv", "cost")
BURST_POLICIES = ("least_loaded", "power_of_two", *POLICIES)
KV_TOKENS = 60_000
"""Of each engine: caches that are too small for all, so that what is where matters."""
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    seeds: int = 2
    bursts: tuple[int, ...] = (48, 96, 192)
    requests: int = 2_000
    """In the part on CPU time."""
    jobs: int | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation."""

    workload: str
    policy: str
    case: str
    seed: int


def turns(seed: int) -> Trace:
    """Conversations that grow, a system prompt shared by many."""
    think = Lognormal(12_000, 0.9, 1_000, 100_000)
    return chat(Chat(Poisson(4.0), sessions=300, think_ms=think), np.random.default_rng(seed))


def shared(seed: int) -> Trace:
    """Long system prompts of unequal popularity."""
    settings = SharedPrefix(
        Poisson(15.0),
        groups=100,
        system_tokens=Fixed(4_000),
        question_tokens=Fixed(600),
        output_tokens=Fixed(200),
        order=Order.DRAWN,
        zipf=0.8,
        requests=1_500,
    )
    return shared_prefix(settings, np.random.default_rng(seed))


def burst(count: int, seed: int) -> Trace:
    """Requests that have nothing in common, within 100 ms."""
    times = np.sort(np.random.default_rng(seed).uniform(0, 100, count))
    requests = [
        TraceRequest(float(at_ms), 512, 200, block_ids=tuple(range(100 * i + 1, 100 * i + 33)))
        for i, at_ms in enumerate(times)
    ]
    return Trace("burst", tuple(requests), 16)


def carry_out_run(run: Run) -> Results:
    """Simulate it."""
    engine = profile("h100/llama-8b")
    if run.workload.isdigit():
        trace = burst(int(run.workload), run.seed)
    else:
        trace = turns(run.seed) if run.workload == "conversations" else shared(run.seed)
        engine = dataclasses.replace(engine, kv_tokens=KV_TOKENS)
    front_ends, lag_ms = CASES[run.case]
    setup = Setup(
        groups=(WorkerGroup(profile=engine, count=WORKERS),),
        kv_events=run.policy != "prefix",
        front_ends=front_ends,
        front_end_lag_ms=lag_ms,
    )
    outcome = simulate(trace, setup, PolicyRegistry().get(run.policy), seed=run.seed)
    requests = np.bincount(outcome.worker, minlength=WORKERS)
    return {
        "run": msgspec.to_builtins(run),
        "done": int(outcome.done.sum()),
        "requests": len(trace),
        "hit_rate": float(outcome.cached_tokens.sum() / outcome.prompt_tokens.sum()),
        "ttft_mean_ms": float(outcome.ttft_ms.mean()),
        "ttft_p99_ms": float(np.percentile(outcome.ttft_ms, 99)),
        "e2e_mean_ms": float(outcome.e2e_ms.mean()),
        "most_to_mean": float(requests.max() / requests.mean()),
    }


# ---- what talking costs


def talking_us(requests: int) -> dict[str, float]:
    """CPU µs a request of 2,000 prompt tokens by text: with nobody to tell, what telling adds, what hearing costs."""
    silent, sent = _lives(requests, tell=False)
    teller, news = _lives(requests, tell=True)
    started = time.process_time()
    payloads = [encode_news(one) for one in news]
    encoding = time.process_time() - started
    listener = _ledger()
    started = time.process_time()
    for payload in payloads:
        listener.apply(ev.ReplicaTold("other", 0.0, decode_news(payload)))
    hearing = time.process_time() - started
    assert listener.snapshot().others == {"other": 0}
    assert not sent
    return {
        "alone_us": 1e6 * silent / requests,
        "telling_us": 1e6 * (teller - silent + encoding) / requests,
        "hearing_us": 1e6 * hearing / requests,
        "bytes": sum(map(len, payloads)) / requests,
        "payloads": len(payloads) / requests,
    }


def _ledger() -> Ledger:
    ledger = Ledger()
    for number in range(WORKERS):
        ledger.apply(ev.WorkerJoined(WorkerSpec(worker_id(f"e{number}"), f"http://e{number}", "vllm", ("m",)), 0.0))
    return ledger


def _blocks(number: int) -> BlockKeys:
    first = 10**12 + 64 * number
    return BlockKeys(tuple(range(first, first + 64)), 128, BlockUnit.BYTES, 8_192)


def _lives(count: int, *, tell: bool) -> tuple[float, list[ReplicaNews]]:
    """CPU s of so many lives of requests, and what is told of them every ten events of one, as at 1,000 a second."""
    ledger = _ledger()
    if tell:
        ledger.tell_others(lambda: None)
    requests = [Request(f"r{n}", "m", 0.0, 2_000, _blocks(n)) for n in range(count)]
    news: list[ReplicaNews] = []
    started = time.process_time()
    for number, request in enumerate(requests):
        ledger.apply(ev.Admitted(request, 0.0))
        ledger.apply(ev.Dispatched(request.id, worker_id(f"e{number % WORKERS}"), 0.0))
        ledger.apply(ev.FirstToken(request.id, 0.0))
        for _ in range(3):
            ledger.apply(ev.Progress(request.id, 0.0, 32))
        ledger.apply(ev.Finished(request.id, 0.0, 2_000, 0, 100))
        if tell and number % 10 == 9:
            news.append(ledger.news(0.0))
            ledger.heard_news()
    return time.process_time() - started, news


# ---- tables


def run(options: Options) -> Results:
    """All of it."""
    runs = [
        Run(workload=workload, policy=policy, case=case, seed=seed)
        for workload in ("conversations", "shared prompts")
        for policy in POLICIES
        for case in CASES
        for seed in range(options.seeds)
    ]
    runs += [
        Run(workload=str(count), policy=policy, case=case, seed=seed)
        for count in options.bursts
        for policy in BURST_POLICIES
        for case in CASES
        for seed in range(options.seeds)
    ]
    found = in_parallel(carry_out_run, runs, options.jobs, lambda one: f"{one.workload} {one.policy} {one.case}")
    if any(one["done"] != one["requests"] for one in found):
        raise BenchmarkError("some requests got no answer")
    talking = [talking_us(options.requests) for _ in range(3)]
    least = {key: min(one[key] for one in talking) for key in talking[0]}
    return {"runs": found, "talking": least}


def _of(results: Results, workload: str, policy: str, case: str, key: str) -> list[float]:
    return [
        one[key]
        for one in results["runs"]
        if (one["run"]["workload"], one["run"]["policy"], one["run"]["case"]) == (workload, policy, case)
    ]


def _ratio(results: Results, workload: str, policy: str, case: str, key: str) -> float:
    """To one front end, the mean over seeds."""
    pairs = zip(_of(results, workload, policy, case, key), _of(results, workload, policy, "1", key), strict=True)
    return statistics.fmean(ours / one for ours, one in pairs)


def summary(results: Results) -> dict[str, Any]:
    """What the bars are judged by."""
    talking = [case for case in CASES if case.startswith("3,") and "silent" not in case]
    bursts = sorted({one["run"]["workload"] for one in results["runs"] if one["run"]["workload"].isdigit()}, key=int)
    return {
        "least_hit_rate_ratio": min(
            _ratio(results, workload, policy, case, "hit_rate")
            for workload in ("conversations", "shared prompts")
            for policy in POLICIES
            for case in talking
        ),
        "most_to_mean": {
            count: max(
                statistics.fmean(_of(results, count, policy, case, "most_to_mean"))
                for policy in BURST_POLICIES
                for case in talking
            )
            for count in bursts
        },
        "talking": results["talking"],
    }


def markdown(results: Results) -> str:
    """The tables of the page."""
    return "\n\n".join((_caches(results), _bursts(results), _talking(results["talking"])))


def _caches(results: Results) -> str:
    header = ["workload, policy", "1 front end: hit rate"]
    header += [f"{case}: ÷ 1" for case in CASES if case != "1"] + ["TTFT mean, 3 at 20 ms ÷ 1", "3, silent ÷ 1"]
    rows = []
    for workload in ("conversations", "shared prompts"):
        for policy in POLICIES:
            row = [f"{workload}, `{policy}`"]
            alone = statistics.fmean(_of(results, workload, policy, "1", "hit_rate"))
            row.append(f"{report.number(100 * alone, 1)} %")
            row += [
                report.number(_ratio(results, workload, policy, case, "hit_rate"), 3) for case in CASES if case != "1"
            ]
            row += [
                report.number(_ratio(results, workload, policy, case, "ttft_mean_ms"), 2)
                for case in ("3, 20 ms", "3, silent")
            ]
            rows.append(row)
    return report.table(header, rows)


def _bursts(results: Results) -> str:
    counts = sorted({one["run"]["workload"] for one in results["runs"] if one["run"]["workload"].isdigit()}, key=int)
    header = ["requests within 100 ms, policy", *CASES, "TTFT mean ms: 1", "3, 20 ms", "3, silent"]
    rows: list[Sequence[str]] = []
    for count in counts:
        for policy in BURST_POLICIES:
            even = [statistics.fmean(_of(results, count, policy, case, "most_to_mean")) for case in CASES]
            ttft = [
                statistics.fmean(_of(results, count, policy, case, "ttft_mean_ms"))
                for case in ("1", "3, 20 ms", "3, silent")
            ]
            row = [f"{count}, `{policy}`", *(report.number(one, 2) for one in even)]
            rows.append([*row, *(report.number(one, 0) for one in ttft)])
    return report.table(header, rows)


def _talking(talking: Mapping[str, float]) -> str:
    return (
        f"CPU of the ledger for a request of 2,000 prompt tokens by text: {talking['alone_us']:.0f} µs alone; "
        f"telling the others adds {talking['telling_us']:.0f} µs, hearing of a request of another front end takes "
        f"{talking['hearing_us']:.0f} µs ({talking['bytes']:.0f} bytes a request)."
    )


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, nothing is kept")
    parser.add_argument("--jobs", type=int, help="simulations side by side (all cores)")
    arguments = parser.parse_args()
    options = Options(jobs=arguments.jobs)
    if arguments.quick:
        options = Options(seeds=1, bursts=(96,), requests=500, jobs=arguments.jobs)
    return carry_out(
        "replicas", options, lambda: run(options), markdown, keep=not arguments.quick, summary=summary, page=PAGE
    )


if __name__ == "__main__":
    sys.exit(main())
