"""Shared system prompts: groups of users who have a long beginning in common.

The workload of llm-d's prefix benchmark (llm-d-kv-cache, benchmarking/73-capacity) is the default: 150 groups of 5
users, 6,000 tokens of system prompt and 1,200 of question, one shuffled order of the 750 pairs over and over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import Arrivals, arrival_times
from pointsman.core.workload.generators.distributions import Distribution, Fixed, whole
from pointsman.core.workload.generators.popularity import Popularity, passes
from pointsman.core.workload.prompt_tree import PromptNode, PromptTree
from pointsman.core.workload.trace import Trace


class Order(StrEnum):
    """Who asks next."""

    PASS = "pass"
    """All pairs of group and user in one shuffled order, over and over."""
    PASSES = "passes"
    """All pairs, in each pass in a new order."""
    DRAWN = "drawn"
    """A group by popularity, a user of it uniformly."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Settings. The same group and user ask the same again: all of a prompt can be cached."""

    arrivals: Arrivals
    groups: int = 150
    users: int = 5
    """Of a group."""
    system_tokens: Distribution = Fixed(6000)
    """Drawn once a group."""
    question_tokens: Distribution = Fixed(1200)
    """Drawn once a user of a group."""
    output_tokens: Distribution = Fixed(500)
    order: Order = Order.PASS
    zipf: float = 0.0
    """Of groups, when they are drawn: 0 is uniform."""
    block_tokens: int = 16
    requests: int | None = None
    duration_s: float | None = None


def shared_prefix(settings: SharedPrefix, rng: np.random.Generator) -> Trace:
    """Make it. Raises TraceError when the settings can't be."""
    if settings.groups < 1 or settings.users < 1:
        raise TraceError(f"{settings.groups} groups of {settings.users} users ask nothing")
    if settings.zipf and settings.order is not Order.DRAWN:
        raise TraceError(f"groups have a popularity (zipf {settings.zipf}) only when they are drawn, not in passes")
    tree = PromptTree(settings.block_tokens)
    prompts: list[PromptNode] = []
    for group in range(settings.groups):
        system = tree.root.then(group, whole(settings.system_tokens, rng))
        prompts += [system.then(user, whole(settings.question_tokens, rng)) for user in range(settings.users)]
    times = arrival_times(settings.arrivals, rng, settings.requests, settings.duration_s)
    requests = []
    for at_ms, pair in zip(times, _pairs(settings, rng), strict=False):
        session = f"group-{pair // settings.users}/user-{pair % settings.users}"
        requests.append(prompts[pair].request(at_ms, whole(settings.output_tokens, rng), session=session))
    return Trace("shared-prefix", tuple(requests), settings.block_tokens, "made: shared system prompts")


def _pairs(settings: SharedPrefix, rng: np.random.Generator) -> Iterator[int]:
    if settings.order is not Order.DRAWN:
        pairs = settings.groups * settings.users
        yield from passes(pairs, rng, shuffle_each=settings.order is Order.PASSES)
    popularity = Popularity(settings.groups, settings.zipf)
    while True:
        yield popularity.draw(rng) * settings.users + int(rng.integers(settings.users))
