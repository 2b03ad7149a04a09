"""Memory and speed of the exact prefix index, engine-hash map included, and that it does not grow for ever.

usage: scripts/bench index [--quick]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from harness import report
from harness.command import carry_out
from harness.noise import NoiseMeter
from pointsman.core.ledger.prefix_index import PrefixIndex
from pointsman.core.model.token_keys import GPU, KeySpec, chain, pack_tokens, token_seed

SPEC = KeySpec(16)
RUN_BLOCKS = 64
PAGE_BYTES = 4096
SLOTS = 8


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    pairs: int = 5_000_000
    prompts: int = 1_000_000
    prompt_blocks: int = 8
    capacity_blocks: int = 50_000
    """Of each worker, in the part with prompts that come and go."""


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class Prompts:
    """Runs of blocks that never come twice: keys from real chains, hashes as vLLM makes them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def run(self, blocks: int) -> tuple[list[int], list[int]]:
        """Engine hashes and keys of a new prompt."""
        packed = pack_tokens(self._rng.randrange(100_000) for _ in range(16)) * blocks
        keys = chain(packed, SPEC, token_seed(SPEC) ^ self._rng.getrandbits(50))
        return [self._rng.getrandbits(64) for _ in range(blocks)], keys


def fill(pairs: int, workers_per_block: int) -> dict[str, float]:
    """Store so many (block, worker) pairs in a new index."""
    prompts, index = Prompts(1), PrefixIndex()
    seats = [index.take_seat() for _ in range(SLOTS)]
    gc.disable()
    before = rss_bytes()
    spent_s = 0.0
    for number in range(pairs // workers_per_block // RUN_BLOCKS):
        hashes, keys = prompts.run(RUN_BLOCKS)
        slots = range(SLOTS) if workers_per_block == SLOTS else [number % SLOTS]
        started = time.perf_counter()
        for slot in slots:
            # Each engine's hashes are numbers of their own, though equal ones.
            index.store(seats[slot], GPU, [value + 0 for value in hashes], keys)
        spent_s += time.perf_counter() - started
    gc.collect()
    stored = sum(index.count(seat) for seat in seats)
    return {"bytes_per_pair": (rss_bytes() - before) / stored, "us_per_pair": spent_s / stored * 1e6, "pairs": stored}


def come_and_go(options: Options) -> dict[str, Any]:
    """Prompts that never repeat, caches that evict, workers that leave and come back: memory after each tenth."""
    prompts, index, rng = Prompts(2), PrefixIndex(), random.Random(3)
    seats = [index.take_seat() for _ in range(SLOTS)]
    held: list[list[list[int]]] = [[] for _ in range(SLOTS)]
    at: list[float] = []
    for number in range(options.prompts):
        slot = number % SLOTS
        hashes, keys = prompts.run(options.prompt_blocks)
        index.store(seats[slot], GPU, hashes, keys)
        held[slot].append(hashes)
        if len(held[slot]) * options.prompt_blocks > options.capacity_blocks:
            index.remove(seats[slot], GPU, held[slot].pop(0))
        if rng.random() < 1e-4:
            index.retire(seats[slot])
            seats[slot] = index.take_seat()
            held[slot].clear()
        if (number + 1) % (options.prompts // 10) == 0:
            at.append(rss_bytes() / 1e6)
    return {"rss_mb": at, "blocks": len(index)}


def apart(target: Any, *arguments: Any) -> Any:
    """The result of a function in a process of its own, so that memory is counted from nothing."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(target, arguments)


def run(options: Options) -> dict[str, Any]:
    """All parts."""
    noise = NoiseMeter()
    filled = {str(workers): apart(fill, options.pairs, workers) for workers in (1, SLOTS)}
    return {"filled": filled, "come_and_go": apart(come_and_go, options), "foreign_cores": noise.foreign_cores()}


def markdown(results: dict[str, Any]) -> str:
    """The tables of the page."""
    lines = [
        [
            workers,
            report.number(row["pairs"]),
            report.number(row["bytes_per_pair"]),
            report.number(row["us_per_pair"], 2),
        ]
        for workers, row in results["filled"].items()
    ]
    first = report.table(["workers a block", "pairs", "bytes / pair", "µs / pair stored"], lines)
    memory = results["come_and_go"]["rss_mb"]
    flat = ", ".join(report.number(value) for value in memory)
    return (
        f"{first}\n\nUnique prompts, workers that leave and come back: resident MB after each tenth: {flat}.\n\n"
        f"{report.noise_line(results['foreign_cores'])}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller, nothing written")
    arguments = parser.parse_args()
    options = Options(pairs=400_000, prompts=40_000, capacity_blocks=10_000) if arguments.quick else Options()
    return carry_out("index", options, lambda: run(options), markdown, keep=not arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
