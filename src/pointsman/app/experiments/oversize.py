"""Requests that are too long for a fleet: prompts that no worker can ever hold, answers that no worker can end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.core.workload.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Limit:
    """Tokens of prompt and answer together, and what they are the limit of."""

    tokens: int
    what: str

    def __str__(self) -> str:
        """For example `the KV cache of tiny (1,600 tokens)`."""
        return f"{self.what} ({self.tokens:,} tokens)"


@dataclass(frozen=True, slots=True)
class Room:
    """The roomiest workers that answer. What is too long for those that compute prompts for them they compute too."""

    answers: Limit

    def refuses(self, request: TraceRequest) -> bool:
        """Whether a request is kept out."""
        return request.prompt_tokens + 1 > self.answers.tokens

    def cuts(self, request: TraceRequest) -> bool:
        """Whether it fits, and its answer ends early."""
        return request.prompt_tokens + request.output_tokens > self.answers.tokens and not self.refuses(request)


def room(setup: Setup, trace_block_tokens: int) -> Room:
    """That of a fleet, for a trace with blocks of that size (0: it has none)."""
    block_tokens = setup.blocks_for(trace_block_tokens)

    def limit(groups: Iterable[WorkerGroup]) -> Limit:
        held = {group.profile.kv_tokens // block_tokens * block_tokens: group.profile.name for group in groups}
        tokens = max(held)
        if setup.max_context_tokens is not None and setup.max_context_tokens < tokens:
            return Limit(setup.max_context_tokens, "the longest context")
        return Limit(tokens, f"the KV cache of {held[tokens]}")

    return Room(limit(group for group in setup.groups if group.role is not Role.PREFILL))


def oversize_note(trace: Trace, setups: Sequence[Setup]) -> str | None:
    """What to know about prompts that are too long for the smallest of these fleets. Raises ConfigError when all are.

    Engines refuse them, so they count as failed.
    """
    found: list[int] = []
    limit = None
    for each in _rooms(trace, setups):
        refused = [number for number, asked in enumerate(trace.requests) if each.refuses(asked)]
        if len(refused) > len(found):
            found, limit = refused, each.answers
    if limit is None:
        return None
    number = found[0]
    first = trace.requests[number].prompt_tokens
    if len(found) == len(trace):
        raise ConfigError(
            f"no prompt of {trace.name} leaves room for an answer in {limit}; the first has {first:,} tokens; "
            "choose a profile with a larger one, or another trace"
        )
    return (
        f"{len(found):,} of {len(trace):,} prompts leave no room for an answer in {limit}, the first is "
        f"request {number} with {first:,}; they are refused and count as failed"
    )


def cut_note(trace: Trace, setups: Sequence[Setup]) -> str | None:
    """What to know about answers that end early in the smallest of these fleets."""
    count, limit = 0, None
    for each in _rooms(trace, setups):
        cut = sum(each.cuts(asked) for asked in trace.requests)
        if cut > count:
            count, limit = cut, each.answers
    if limit is None:
        return None
    return (
        f"{count:,} of {len(trace):,} answers end early, where prompt and answer fill {limit}; "
        "they do not count as good"
    )


def _rooms(trace: Trace, setups: Sequence[Setup]) -> list[Room]:
    return list(dict.fromkeys(room(setup, trace.block_tokens) for setup in setups))
