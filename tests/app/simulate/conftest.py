"""Traces and fleets for simulations."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.app.simulate.simulation import Simulation
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

MakeTrace = Callable[..., Trace]
MakeSetup = Callable[..., Setup]

BLOCK = 16


@dataclass(frozen=True)
class Played:
    """What is left of a simulation."""

    outcome: Outcome
    ledger: Ledger


Play = Callable[..., Played]


@pytest.fixture
def shared_prompts() -> MakeTrace:
    """`shared_prompts(count, every_ms=…)`: Poisson arrivals; each prompt is one of a few long beginnings and an end."""

    def make(
        count: int = 200,
        every_ms: float = 20.0,
        groups: int = 12,
        shared_blocks: int = 40,
        own_blocks: int = 4,
        output_tokens: int = 40,
        seed: int = 1,
    ) -> Trace:
        rng = random.Random(seed)
        requests: list[TraceRequest] = []
        now_ms = 0.0
        for number in range(count):
            now_ms += rng.expovariate(1 / every_ms)
            group = rng.randrange(groups)
            shared = [group * 1000 + block for block in range(shared_blocks)]
            own = [10**6 + number * 100 + block for block in range(own_blocks)]
            tokens = (shared_blocks + own_blocks) * BLOCK - rng.randrange(BLOCK)
            requests.append(TraceRequest(now_ms, tokens, rng.randrange(1, 2 * output_tokens), (*shared, *own)))
        return Trace("shared prompts", requests, BLOCK)

    return make


@pytest.fixture
def conversations() -> MakeTrace:
    """`conversations(people, turns)`: each turn repeats what was said and waits for the answer before it."""

    def make(people: int = 8, turns: int = 4, gap_ms: float = 500.0) -> Trace:
        requests: list[TraceRequest] = []
        for person in range(people):
            first = len(requests)
            for turn in range(turns):
                said = 4 + 6 * turn
                requests.append(
                    TraceRequest(
                        at_ms=10.0 * person,
                        prompt_tokens=said * BLOCK,
                        output_tokens=4 * BLOCK,
                        block_ids=tuple(person * 10_000 + block for block in range(said)),
                        answer_block_ids=tuple(person * 10_000 + block for block in range(said, said + 4)),
                        session=f"person {person}",
                        after=first + turn - 1 if turn else None,
                        gap_ms=gap_ms,
                    )
                )
        return Trace("conversations", requests, BLOCK)

    return make


@pytest.fixture
def fleet() -> MakeSetup:
    """`fleet(4, max_num_seqs=…)`: workers alike, and fields of Setup."""

    def make(count: int = 4, name: str = "h100/llama-8b", **fields: object) -> Setup:
        return Setup((WorkerGroup(profile(name), count),), **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def play() -> Play:
    """`play(trace, setup, "kv", seed=…)`: the simulation after its end, with its outcome."""

    def run(trace: Trace, setup: Setup, policy: str = "least_loaded", **fields: object) -> Played:
        simulation = Simulation(trace, setup, PolicyRegistry().get(policy), **fields)  # type: ignore[arg-type]
        return Played(simulation.run(), simulation.ledger)

    return run
