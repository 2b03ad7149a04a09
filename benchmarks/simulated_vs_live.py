"""The simulator against the live path: one trace through `pointsman serve` before engines that compute in real time.

usage: scripts/bench simulated_vs_live [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from harness import report
from harness.command import carry_out
from harness.noise import NoiseMeter
from harness.processes import processes
from harness.sim_fleet import EngineSize, SimFleet, late
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profile import Profile
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.workload.trace import Trace, TraceRequest

WORKERS = 3
BLOCK_TOKENS = 16
BAR = 0.1
FIGURES = ("ttft_p50_ms", "ttft_p99_ms")
STEP = StepCoefficients(25.0, 1.0, 0.5, 0.3)
SIZE = EngineSize(num_blocks=1_400, block_tokens=BLOCK_TOKENS, max_batched_tokens=2_048)
PROFILE = Profile(
    "slow", STEP, SIZE.num_blocks * BLOCK_TOKENS, 131_072, "none", "none", "none", 1, "made for this benchmark"
)
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    policies: tuple[str, ...] = ("round_robin", "kv")
    runs: int = 5
    seeds: int = 15
    """Of each simulation: equal workers are chosen between by chance."""
    seconds: float = 24.0
    rate_per_s: float = 2.6
    groups: int = 12
    system_tokens: int = 2_400
    question_tokens: int = 800
    output_tokens: int = 16


def made_trace(options: Options, seed: int) -> Trace:
    """Poisson arrivals; each prompt is the beginning of a group and a question of its own. The fleet's cache holds them
    all, that of one engine does not."""
    rng = random.Random(seed)
    shared = [_about(options.system_tokens, rng) // BLOCK_TOKENS for _ in range(options.groups)]
    requests: list[TraceRequest] = []
    at_ms, fresh = 0.0, 10**6
    while (at_ms := at_ms + rng.expovariate(options.rate_per_s) * 1000) < options.seconds * 1000:
        group = rng.randrange(options.groups)
        tokens = shared[group] * BLOCK_TOKENS + _about(options.question_tokens, rng)
        own = -(-tokens // BLOCK_TOKENS) - shared[group]
        blocks = (*range(group * 1000, group * 1000 + shared[group]), *range(fresh, fresh + own))
        fresh += own
        requests.append(TraceRequest(at_ms, tokens, _about(options.output_tokens, rng), blocks))
    return Trace(f"shared beginnings {seed}", tuple(requests), BLOCK_TOKENS)


def _about(tokens: int, rng: random.Random) -> int:
    return rng.randint(tokens // 2, tokens * 3 // 2)


def setup() -> Setup:
    """The live fleet, as the simulator is told of it."""
    return Setup((WorkerGroup(PROFILE, WORKERS),), max_batched_tokens=SIZE.max_batched_tokens)


def run(options: Options) -> Results:
    """Each run has a trace of its own, for both policies and both ways."""
    rows: dict[str, list[dict[str, Any]]] = {policy: [] for policy in options.policies}
    with processes() as group:
        fleet = SimFleet(group, PROFILE, SIZE, WORKERS)
        noise = NoiseMeter(group.pids())
        for number in range(options.runs):
            trace = made_trace(options, number)
            for policy in options.policies:
                rows[policy].append(asyncio.run(_one(fleet, trace, policy, options.seeds)))
                print(f"  run {number + 1}, {policy}: {_told(rows[policy][-1])}", file=sys.stderr, flush=True)
        foreign = noise.foreign_cores()
    return {"rows": rows, "foreign_cores": foreign}


async def _one(fleet: SimFleet, trace: Trace, policy: str, seeds: int) -> dict[str, Any]:
    await fleet.begin(policy)
    behind_ms = await fleet.behind_ms()
    answered = await fleet.replay(trace)
    prompt_tokens = sum(request.prompt_tokens for request in trace.requests)
    return {
        "requests": len(trace),
        "late": late(answered),
        "behind_ms": await fleet.behind_ms() - behind_ms,
        "live": _figures(
            [one.ttft_ms for one in answered],
            [one.e2e_ms for one in answered],
            sum(one.cached_tokens for one in answered) / prompt_tokens,
        ),
        "simulated": _simulated(trace, policy, seeds),
    }


def _simulated(trace: Trace, policy: str, seeds: int) -> dict[str, float]:
    found = []
    for seed in range(seeds):
        outcome = simulate(trace, setup(), PolicyRegistry().get(policy), seed=seed)
        hit = int(outcome.cached_tokens.sum()) / int(outcome.prompt_tokens.sum())
        found.append(_figures(outcome.ttft_ms.tolist(), outcome.e2e_ms.tolist(), hit))
    return {name: float(np.median([one[name] for one in found])) for name in found[0]}


def _figures(ttft_ms: list[float], e2e_ms: list[float], hit: float) -> dict[str, float]:
    p50, p90, p99 = np.quantile(ttft_ms, (0.5, 0.9, 0.99))
    return {
        "ttft_p50_ms": float(p50),
        "ttft_p90_ms": float(p90),
        "ttft_p99_ms": float(p99),
        "e2e_p50_ms": float(np.quantile(e2e_ms, 0.5)),
        "hit": hit,
    }


def _told(row: Mapping[str, Any]) -> str:
    live, simulated = row["live"], row["simulated"]
    pairs = ", ".join(f"{name} {live[name]:.0f} / {simulated[name]:.0f}" for name in FIGURES)
    return f"{pairs}, hit {live['hit']:.2f} / {simulated['hit']:.2f} (live / simulated)"


def summary(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Policy → way → medians over the runs; `off`: how far the simulated ones are away from the live ones."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for policy, rows in results["rows"].items():
        ways = {
            way: {name: float(np.median([row[way][name] for row in rows])) for name in rows[0][way]}
            for way in ("live", "simulated")
        }
        off = {name: ways["simulated"][name] / value - 1 if value else 0.0 for name, value in ways["live"].items()}
        found[policy] = {**ways, "off": off}
    return found


def met(results: Results) -> bool:
    """Whether P50 and P99 agree within the bar for each policy."""
    return all(abs(found["off"][name]) <= BAR for found in summary(results).values() for name in FIGURES)


def markdown(results: Results) -> str:
    """The table of the page."""
    header = ["policy", "", "TTFT P50 ms", "TTFT P90 ms", "TTFT P99 ms", "E2E P50 ms", "hit rate"]
    lines = []
    for policy, found in summary(results).items():
        for way in ("live", "simulated"):
            row = found[way]
            times = [report.number(row[name]) for name in ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "e2e_p50_ms")]
            lines.append([policy, way, *times, report.number(row["hit"], 3)])
        off = [
            f"{found['off'][name]:+.1%}" for name in ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "e2e_p50_ms", "hit")
        ]
        lines.append(["", "difference", *off])
    rows = [row for found in results["rows"].values() for row in found]
    requests = sum(row["requests"] for row in rows)
    late_ones, behind_ms = (sum(row[name] for row in rows) for name in ("late", "behind_ms"))
    verdict = "met" if met(results) else "**not met**"
    runs = len(next(iter(results["rows"].values())))
    return (
        f"{report.table(header, lines)}\n\n"
        f"Medians of {runs} runs. TTFT P50 and P99 within {BAR:.0%}: {verdict}. {late_ones} of {requests} requests "
        f"were sent more than 100 ms late; steps of engines took {behind_ms:,.0f} ms longer than modelled in all. "
        f"{report.noise_line(results['foreign_cores'])}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run, nothing written")
    arguments = parser.parse_args()
    options = Options(runs=1, seconds=15.0) if arguments.quick else Options()
    return carry_out(
        "simulated_vs_live",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PROOFS_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
