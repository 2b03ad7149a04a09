"""llm-d's capacity workload: groups of users with a system prompt in common, in stages of rising load.

150 groups of 5 users; 6,000 tokens for each group and 1,200 more for each user; answers of equal length. Uniform: one
shuffled order of all 750 pairs, again and again. Zipf: group i with weight 1/(i + 1), any of its users.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.core.workload.trace import Trace, TraceRequest

GROUPS, USERS = 150, 5
SYSTEM_TOKENS, QUESTION_TOKENS = 6_000, 1_200
WARM_UP = (15.0, 50.0)
"""Requests a second, seconds. Not counted."""
STAGES = (
    *((3.0, 20.0), (10.0, 20.0), (15.0, 20.0), (20.0, 38.0), (22.0, 34.0), (25.0, 30.0), (30.0, 25.0), (35.0, 21.0)),
    *((40.0, 38.0), (43.0, 36.0), (46.0, 33.0), (49.0, 30.0), (52.0, 29.0), (55.0, 27.0), (57.0, 26.0), (60.0, 25.0)),
)
"""Requests a second, seconds."""
DRAIN_MS = 240_000.0
"""Between the last request of a stage and the first one of the next, which begins when nobody is left: longer than any
policy needs. The simulated clock does not care."""
TRACE_BLOCK_TOKENS = QUESTION_TOKENS
"""Engines cut these into blocks of theirs."""


@dataclass(frozen=True, slots=True)
class Stages:
    """A trace and which of its requests belong to which stage."""

    trace: Trace
    stage: tuple[int, ...]
    """One entry a request: index of its stage."""
    rates: tuple[float, ...]
    """Requests a second of each stage."""
    starts_ms: tuple[float, ...]


def pairs(popularity: str, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Endless (group, user)."""
    if popularity == "zipf":
        weights = list(itertools.accumulate(1 / (group + 1) for group in range(GROUPS)))
        while True:
            yield rng.choices(range(GROUPS), cum_weights=weights)[0], rng.randrange(USERS)
    order = [(group, user) for group in range(GROUPS) for user in range(USERS)]
    rng.shuffle(order)
    yield from itertools.cycle(order)


def prompt_ids(group: int, user: int) -> tuple[int, ...]:
    """Chained block ids of a prompt: the group's, and the user's one."""
    shared = SYSTEM_TOKENS // TRACE_BLOCK_TOKENS
    first = group * (shared + USERS)
    return (*range(first, first + shared), first + shared + user)


def staged(
    seed: int,
    *,
    popularity: str = "uniform",
    output_tokens: int = 500,
    stages: Sequence[tuple[float, float]] = (WARM_UP, *STAGES),
    answers_cached: bool = False,
) -> Stages:
    """Poisson arrivals, rate x seconds of them in each stage.

    `answers_cached`: engines keep the blocks of answers too, which nobody ever repeats; else those are free at once.
    """
    rng = random.Random(seed)
    asked = pairs(popularity, rng)
    answers = itertools.count(GROUPS * (SYSTEM_TOKENS + QUESTION_TOKENS))  # above all ids of prompts
    requests: list[TraceRequest] = []
    stage_of: list[int] = []
    starts: list[float] = []
    now_ms = 0.0
    for number, (rate, seconds) in enumerate(stages):
        now_ms += DRAIN_MS if number else 0.0
        starts.append(now_ms)
        for _ in range(round(rate * seconds)):
            now_ms += rng.expovariate(rate) * 1000
            requests.append(
                TraceRequest(
                    at_ms=now_ms,
                    prompt_tokens=SYSTEM_TOKENS + QUESTION_TOKENS,
                    output_tokens=output_tokens,
                    block_ids=prompt_ids(*next(asked)),
                    answer_block_ids=(next(answers),) if answers_cached else (),
                )
            )
            stage_of.append(number)
    trace = Trace(f"shared prompts, {popularity}", requests, TRACE_BLOCK_TOKENS, f"generated, seed {seed}")
    return Stages(trace, tuple(stage_of), tuple(rate for rate, _ in stages), tuple(starts))
