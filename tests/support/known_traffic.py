"""Traffic whose right answer is known, and questions about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pointsman.app.advice.findings import Findings
from pointsman.app.advice.fleets import fleets, parse_gpus
from pointsman.app.advice.question import Question
from pointsman.app.experiments.fleet import parse_profiles
from pointsman.app.experiments.slo import parse_slo
from pointsman.app.simulate.setup import Setup
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.profile_file import load_profile

BLOCK_TOKENS = 512

Consult = Callable[..., Findings]


def traffic(
    requests: int,
    every_ms: float,
    *,
    groups: int | None = None,
    shared_blocks: int = 12,
    own_blocks: int = 1,
    output_tokens: int = 10,
) -> Trace:
    """One request every so often; those of a group share `shared_blocks` (no groups: nobody shares anything)."""
    rows = []
    for number in range(requests):
        group = number if groups is None else number * 7 % groups
        shared = [1_000 * (group + 1) + block for block in range(shared_blocks)]
        own = [10_000_000 + 100 * number + block for block in range(own_blocks)]
        ids = tuple(shared + own)
        rows.append(TraceRequest(number * every_ms, len(ids) * BLOCK_TOKENS, output_tokens, ids))
    return Trace("made", tuple(rows), BLOCK_TOKENS)


def without_blocks(trace: Trace) -> Trace:
    """The same, where nobody knows what prompts share."""
    return replace(trace, requests=tuple(replace(each, block_ids=()) for each in trace.requests), block_tokens=0)


def question(
    trace: Trace, gpus: str = "4", profile: str = "h100/llama-8b", slo: str = "ttft=500ms", **more: object
) -> Question:
    """A question with three seeds."""
    profiles = parse_profiles(profile, load_profile)
    possible = fleets(profiles, parse_gpus(gpus))
    asked = Question(trace, profiles, possible, Setup(possible.together[0].groups), parse_slo(slo), seeds=3)
    return replace(asked, **more)  # type: ignore[arg-type]
