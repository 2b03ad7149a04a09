"""Chat with several turns: a system prompt that many share, then questions and answers that pile up."""

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
class Chat:
    """Settings. Arrivals are of sessions, not of requests."""

    arrivals: Arrivals
    system_prompts: int = 4
    """Different ones; 0: there is none."""
    zipf: float = 1.0
    """Of system prompts."""
    system_tokens: Distribution = Fixed(1000)
    turns: Distribution = Lognormal(4, 0.6, 1, 30)
    user_tokens: Distribution = Lognormal(120, 1.0, 1, 8000)
    output_tokens: Distribution = Lognormal(300, 0.7, 1, 4000)
    think_ms: Distribution = Lognormal(45_000, 0.9, 1000, 600_000)
    most_tokens: int = 128_000
    """A session ends before its prompt and answer are longer."""
    block_tokens: int = 16
    sessions: int | None = None
    duration_s: float | None = None
    """Of the arrivals of sessions; their later turns can come afterwards."""


def chat(settings: Chat, rng: np.random.Generator) -> Trace:
    """Make it."""
    tree = PromptTree(settings.block_tokens)
    starts = [tree.root]
    if settings.system_prompts:
        starts = [tree.root.then(n, whole(settings.system_tokens, rng)) for n in range(settings.system_prompts)]
    popularity = Popularity(len(starts), settings.zipf)
    requests: list[TraceRequest] = []
    for number, at_ms in enumerate(arrival_times(settings.arrivals, rng, settings.sessions, settings.duration_s)):
        talk = Conversation(f"chat-{number}", at_ms, starts[popularity.draw(rng)], requests)
        for turn in range(whole(settings.turns, rng)):
            question, answer = whole(settings.user_tokens, rng), whole(settings.output_tokens, rng)
            if turn and talk.node.tokens + question + answer > settings.most_tokens:
                break
            talk.add(question)
            talk.ask(answer)
            talk.wait(settings.think_ms.draw(rng))
    return Trace("chat", in_order(requests), settings.block_tokens, "made: chat with several turns")
