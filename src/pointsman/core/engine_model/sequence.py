"""What an engine is asked for, and the state of each answer while it is computed."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass

from pointsman.core.engine_model import token_source


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request: a prompt and how much to generate."""

    id: str
    prompt: TokenIds[int]
    """Token ids, at least one."""
    max_tokens: int
    """Exactly that many are generated for each sequence, unless the context ends first."""
    sequences: int = 1
    """Answers (`n`); they share the prompt's blocks."""
    lora_name: str | None = None
    cache_salt: str | None = None


class SequenceState(enum.IntEnum):
    """Where a sequence is. A preempted one is waiting again."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    ABORTED = 3


class Sequence:
    """One answer. Only the scheduler and the engine change it; everybody may read it."""

    __slots__ = (
        "_digest",
        "blocks",
        "blocks_announced",
        "cached_tokens",
        "computed",
        "first_token_ms",
        "hashes",
        "index",
        "preemptions",
        "prompt_length",
        "request",
        "scheduled_ms",
        "seed",
        "state",
        "target_length",
        "tokens",
    )

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        tokens: array[int],
        hashes: list[int],
        seed: int,
        digest: int,
        target_length: int,
    ) -> None:
        self.request = request
        self.index = index
        self.tokens = tokens
        """Prompt and what was generated so far."""
        self.prompt_length = len(tokens)
        self.target_length = target_length
        """Length of `tokens` at which it finishes."""
        self.hashes = hashes
        """Hashes of its full blocks, as far as they are known."""
        self.seed = seed
        self.blocks: list[int] = []
        self.blocks_announced = 0
        """Leading blocks that are full, and in the prefix cache where there is one."""
        self.computed = 0
        """Leading tokens whose KV is there."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache when it was first scheduled; None = not scheduled yet."""
        self.preemptions = 0
        self.state = SequenceState.WAITING
        self.scheduled_ms: float | None = None
        self.first_token_ms: float | None = None
        self._digest = digest

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    def generate(self, output_ids: TokenIds[int]) -> int:
        """Append the next token and return it."""
        tokens = self.tokens
        position = len(tokens)
        token = output_ids[token_source.choose(self._digest, position, len(output_ids))]
        tokens.append(token)
        self._digest = token_source.extend_digest(self._digest, token, position)
        return token
