"""Agents: a long prompt of tools and instructions that many share, then calls of tools whose results pile up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pointsman.core.workload.generators.arrivals import Arrivals, arrival_times
from pointsman.core.workload.generators.distributions import Distribution, Fixed, Lognormal, whole
from pointsman.core.workload.generators.popularity import Popularity
from pointsman.core.workload.generators.turns import Conversation
from pointsman.core.workload.ordering import in_order
from pointsman.core.workload.prompt_tree import PromptTree
from pointsman.core.workload.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Agents:
    """Settings. Arrivals are of agent runs.

    With the defaults the medians of prompts, answers, requests a run and pauses are within a quarter of those of the
    recorded coding agents of docs/traces.md (99,158 and 219 tokens, 30 requests, 10 s). The recorded ones spread more:
    some have contexts of 900 k tokens, and some people come back the next day.
    """

    arrivals: Arrivals
    kinds: int = 8
    """Different prompts of tools and instructions."""
    zipf: float = 1.0
    """Of kinds."""
    system_tokens: Distribution = Fixed(20_000)
    tasks: Distribution = Lognormal(4, 1.0, 1, 30)
    """Things that a person asks for one after the other in one run."""
    steps: Distribution = Lognormal(13, 1.1, 1, 200)
    """Requests of a task: all but its last answer call a tool."""
    task_tokens: Distribution = Lognormal(300, 1.2, 5, 20_000)
    result_tokens: Distribution = Lognormal(3300, 1.8, 10, 50_000)
    """Of a tool."""
    output_tokens: Distribution = Lognormal(420, 1.6, 10, 8000)
    tool_ms: Distribution = Lognormal(17_000, 1.5, 500, 600_000)
    think_ms: Distribution = Lognormal(300_000, 1.5, 2000, 3_600_000)
    """Of the person, between tasks."""
    most_tokens: int = 180_000
    """Longer contexts are summed up: the run goes on with the shared prompt and a summary."""
    summary_tokens: Distribution = Fixed(3000)
    block_tokens: int = 16
    sessions: int | None = None
    duration_s: float | None = None
    """Of the arrivals of runs; their later requests can come afterwards."""


def agents(settings: Agents, rng: np.random.Generator) -> Trace:
    """Make it."""
    tree = PromptTree(settings.block_tokens)
    starts = [tree.root.then(kind, whole(settings.system_tokens, rng)) for kind in range(settings.kinds)]
    popularity = Popularity(len(starts), settings.zipf)
    requests: list[TraceRequest] = []
    for number, at_ms in enumerate(arrival_times(settings.arrivals, rng, settings.sessions, settings.duration_s)):
        start = starts[popularity.draw(rng)]
        run = Conversation(f"agent-{number}", at_ms, start, requests)
        for _ in range(whole(settings.tasks, rng)):
            new = whole(settings.task_tokens, rng)
            for step in range(whole(settings.steps, rng)):
                if step:
                    run.wait(settings.tool_ms.draw(rng))
                    new = whole(settings.result_tokens, rng)
                answer = whole(settings.output_tokens, rng)
                if run.node.tokens + new + answer > settings.most_tokens:
                    run.node = start
                    run.add(whole(settings.summary_tokens, rng))
                run.add(new)
                run.ask(answer)
            run.wait(settings.think_ms.draw(rng))
    return Trace("agents", in_order(requests), settings.block_tokens, "made: agents that call tools")
