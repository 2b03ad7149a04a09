"""Steps that have begun, and what they brought.

Steps that only decode are done in one go, a *run*: with C sequences each one reads C tokens more than the one before,
so k steps take `k * first + growth * k(k-1)/2` ms, where noise does not make each take its own time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pointsman.core.engine_model.events import KvEvent
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.timing.step import StepCoefficients


class Batch:
    """What one step computes."""

    __slots__ = ("chunks", "context_tokens", "decodes", "load_ms", "prefill_squares", "prefill_tokens")

    def __init__(self) -> None:
        self.chunks: list[tuple[Sequence, int]] = []
        """Sequences of which more than their last token is computed, or for the first time, and how many tokens."""
        self.decodes = 0
        self.context_tokens = 0
        """KV tokens that the decodes read."""
        self.prefill_tokens = 0
        self.prefill_squares = 0
        """Sum of `end² - start²` over the chunks of prompts."""
        self.load_ms = 0.0
        """Loading blocks from lower tiers."""

    def add(self, sequence: Sequence, count: int) -> None:
        """Put `count` tokens of a sequence that does not decode yet into the step."""
        self.chunks.append((sequence, count))
        computed = sequence.still_computed
        if count == 1 and computed >= sequence.prompt_length:
            # All of a preempted one but its last token was still cached.
            self.decodes += 1
            self.context_tokens += computed + 1
        else:
            self.prefill_tokens += count
            self.prefill_squares += count * (2 * computed + count)


class Step:
    """A step, or a run of them, that has begun."""

    __slots__ = ("_base_ms", "_began_ms", "_ends_ms", "_growth_ms", "batch", "steps")

    def __init__(
        self,
        batch: Batch,
        steps: int,
        coefficients: StepCoefficients,
        began_ms: float,
        slow: float,
        noise: NDArray[np.float64] | None = None,
    ) -> None:
        """`slow`: computing takes that many times as long; `noise`: each step, besides; None: no noise."""
        self.batch = batch
        """What the first of them computes."""
        self.steps = steps
        base_ms = coefficients.step_ms(batch.decodes, batch.context_tokens, batch.prefill_tokens, batch.prefill_squares)
        self._base_ms = slow * base_ms + batch.load_ms
        self._growth_ms = slow * coefficients.c_ms_per_1000_context_tokens * batch.decodes / 1000
        self._began_ms = began_ms
        self._ends_ms: NDArray[np.float64] | None = None
        """With noise, the ends of all steps of a run, from the beginning of the first."""
        if noise is None:
            return
        if steps == 1:
            self._base_ms = slow * base_ms * float(noise[0]) + batch.load_ms
        else:
            self._ends_ms = np.cumsum((self._base_ms + self._growth_ms * np.arange(steps)) * noise[:steps])

    @property
    def decodes(self) -> int:
        """Sequences that are decoded in each of them."""
        return self.batch.decodes

    @property
    def duration_ms(self) -> float:
        """Of all of them."""
        return self.duration_of(self.steps)

    def duration_of(self, steps: int) -> float:
        """Milliseconds that the first `steps` of them take."""
        if self._ends_ms is not None:
            return float(self._ends_ms[steps - 1]) if steps else 0.0
        return steps * self._base_ms + self._growth_ms * (steps * (steps - 1) // 2)

    def end_ms(self, number: int) -> float:
        """When the step of that number ends, counted from 1."""
        return self._began_ms + self.duration_of(number)

    def each_ms(self, steps: int) -> NDArray[np.float64] | None:
        """With noise, how long each of the first `steps` of a run takes; None: ask for `lengths`."""
        return None if self._ends_ms is None else np.diff(self._ends_ms[:steps], prepend=0.0)

    def lengths(self, steps: int) -> Iterator[tuple[float, int]]:
        """Milliseconds that the first `steps` of them take, and how many take so long each, to half a percent."""
        growth = self._growth_ms * (steps - 1) / self._base_ms if self._growth_ms else 0.0
        apart = min(steps, 1 + int(growth * 100))
        done, done_ms = 0, 0.0
        for part in range(1, apart + 1):
            until = steps * part // apart
            until_ms = self.duration_of(until)
            yield (until_ms - done_ms) / (until - done), until - done
            done, done_ms = until, until_ms

    def begun_by(self, now_ms: float) -> int:
        """How many have begun at `now_ms`; one that would begin just then has not."""
        elapsed_ms = now_ms - self._began_ms
        if self.steps == 1 or elapsed_ms >= self.duration_of(self.steps):
            return self.steps
        if self._ends_ms is not None:
            return int(np.searchsorted(self._ends_ms[: self.steps], elapsed_ms)) + 1
        if elapsed_ms <= self._base_ms:
            return 1
        # Root of half * k² + linear * k = elapsed in the form that holds for half = 0, too.
        half = self._growth_ms / 2
        linear = self._base_ms - half
        root = 2 * elapsed_ms / (linear + math.sqrt(linear * linear + 4 * half * elapsed_ms))
        steps = max(1, min(self.steps, math.ceil(root)))
        while steps > 1 and self.duration_of(steps - 1) >= elapsed_ms:
            steps -= 1
        while self.duration_of(steps) < elapsed_ms:
            steps += 1
        return steps


@dataclass(slots=True)
class StepResult:
    """What a step, or a run of them, brought."""

    tokens: list[tuple[Sequence, int]] = field(default_factory=list)
    """Each sequence with contents that got a token, and the token; step after step."""
    first: list[Sequence] = field(default_factory=list)
    """Sequences that got their first token."""
    finished: list[Sequence] = field(default_factory=list)
    """Those that got their last one, first token or not."""
    resumed: list[tuple[Sequence, float]] = field(default_factory=list)
    """Sequences that had been preempted and got a token again, with the ms for which they stood still."""
    events: list[KvEvent] = field(default_factory=list)
    steps: int = 1
    decodes: int = 0
    """Sequences that got one token in each of the steps, beside those in `first` and `resumed`."""


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started."""

    steps: int = 0
    prompt_tokens_computed: int = 0
    """Prompt tokens that were computed here, each once, counted when their request's first token came."""
    prompt_tokens_cached: int = 0
    """Prompt tokens taken from the prefix cache, counted at the same moment."""
    prompt_tokens_transferred: int = 0
    """Prompt tokens whose KV came from another engine, counted at the same moment."""
    generated_tokens: int = 0
    finished: int = 0
    """Sequences that generated everything that they were asked for."""
    aborted: int = 0
    """Sequences taken out before that."""
