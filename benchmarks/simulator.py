"""Speed and memory of the simulator: Mooncake's conversation trace on 16 workers, one core.

usage: scripts/bench simulator [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from harness import report
from harness.command import carry_out
from harness.mooncake import BLOCK_TOKENS, conversation_trace
from harness.noise import NoiseMeter
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile

WORKERS = 16
PROFILE = "h100/llama-70b-tp4"
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    policies: tuple[str, ...] = ("round_robin", "least_loaded", "prefix", "kv")
    block_tokens: tuple[int, ...] = (BLOCK_TOKENS, 16)
    rounds: int = 3


def measure(policy: str, block_tokens: int, shuffle_ties: bool = False) -> dict[str, Any]:
    """One simulation in a process of its own. Most requests of the trace share their moment with others."""
    started = time.perf_counter()
    trace = conversation_trace()
    loaded_s = time.perf_counter() - started
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    setup = Setup(groups=(WorkerGroup(profile=profile(PROFILE), count=WORKERS),), block_tokens=block_tokens)
    started, cpu = time.perf_counter(), time.process_time()
    outcome = simulate(trace, setup, PolicyRegistry().get(policy), shuffle_ties=shuffle_ties)
    return {
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "load_s": loaded_s,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "trace_mb": before_kb / 1024,
        "simulated_s": (outcome.ended_ms - outcome.started_ms) / 1000,
        "done": int(outcome.done.sum()),
        "ttft_mean_s": float(np.nanmean(outcome.ttft_ms)) / 1000,
        "tok_s": float(outcome.output_tokens.sum()) / (outcome.ended_ms - outcome.started_ms) * 1000,
        "digest": outcome.digest(),
        "hit": float(outcome.cached_tokens.sum() / outcome.prompt_tokens.sum()),
    }


def run(options: Options) -> Results:
    """Each policy and block size, `rounds` times, one after another."""
    conversation_trace()  # says at once when it is not there
    noise = NoiseMeter()
    rows: dict[str, list[dict[str, Any]]] = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for _ in range(options.rounds):
            for block_tokens in options.block_tokens:
                for policy in options.policies:
                    found = pool.apply(measure, (policy, block_tokens))
                    rows.setdefault(f"{policy}/{block_tokens}", []).append(found)
                    print(f"  {policy} {block_tokens}: {found['cpu_s']:.1f} s", file=sys.stderr, flush=True)
        shuffled = {policy: pool.apply(measure, (policy, BLOCK_TOKENS, True)) for policy in options.policies}
    return {"rows": rows, "shuffled": shuffled, "foreign_cores": noise.foreign_cores()}


def summary(results: Results) -> Mapping[str, Any]:
    """Medians over the rounds."""
    return {
        case: {key: float(np.median([one[key] for one in rounds])) for key in rounds[0] if key != "digest"}
        for case, rounds in results["rows"].items()
    }


def same_bytes(results: Results) -> bool:
    """Whether all rounds of a case came to the very same numbers."""
    return all(len({one["digest"] for one in rounds}) == 1 for rounds in results["rows"].values())


def changes(results: Results, key: str) -> dict[str, float]:
    """What shuffling simultaneous events changes, as a share: policy → change."""
    return {
        policy: found[key] / results["rows"][f"{policy}/{BLOCK_TOKENS}"][0][key] - 1
        for policy, found in results["shuffled"].items()
    }


def markdown(results: Results) -> str:
    """The table of the page, and what it says of chance."""
    header = ["policy", "block tokens", "CPU s", "s", "× real time", "peak MB", "TTFT mean s", "hit rate"]
    lines = []
    for case, row in summary(results).items():
        policy, _, size = case.rpartition("/")
        lines.append(
            [
                policy,
                size,
                report.number(row["cpu_s"], 1),
                report.number(row["wall_s"], 1),
                report.number(row["simulated_s"] / row["cpu_s"]),
                report.number(row["rss_mb"]),
                report.number(row["ttft_mean_s"], 2),
                report.number(row["hit"], 3),
            ]
        )
    rounds = len(next(iter(results["rows"].values())))
    same = "the same bytes" if same_bytes(results) else "**not the same numbers**"
    speed, wait = changes(results, "tok_s"), changes(results, "ttft_mean_s")
    moved = "; ".join(f"{policy} {speed[policy]:+.2%} tok/s, {wait[policy]:+.1%} mean TTFT" for policy in speed)
    return (
        f"{report.table(header, lines)}\n\nRounds with the same seed: {rounds}, {same}. Simultaneous events in random "
        f"order instead: {moved}.\n\n{report.noise_line(results['foreign_cores'])}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round at the trace's block size, nothing written")
    arguments = parser.parse_args()
    options = Options(rounds=1, block_tokens=(BLOCK_TOKENS,)) if arguments.quick else Options()
    return carry_out(
        "simulator",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PROOFS_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
