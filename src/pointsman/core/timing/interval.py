"""What one worker computed between two moments: the observation that step coefficients are learned from.

The sums are taken over the steps in between, so the step formula is linear in them:
`elapsed = a·steps + b·sequence_steps + c·context_token_steps/1000 + d·prefill_tokens + q·prefill_squares + o·starts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients

FEATURES = ("a", "b", "c", "d", "q", "o")
"""Names of the coefficients in the order of `Interval.features`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Work of one worker in `elapsed_ms`. Decodes only, prefill only, or both.

    Raises ConfigError for a time that is not above zero, for sums below zero and for an interval without any work.
    """

    elapsed_ms: float
    steps: float
    """Passes through the model."""
    sequence_steps: float = 0.0
    """Σ over the steps of the sequences decoded: the tokens that they got."""
    context_token_steps: float = 0.0
    """Σ over the steps of the KV tokens that the decodes read."""
    prefill_tokens: float = 0.0
    """Prompt tokens computed: those found in the cache do not count."""
    prefill_squares: float = 0.0
    """Σ(end² − start²) over the prompts: a prompt of n tokens of which k were cached adds n² − k²."""
    starts: float = 0.0
    """Requests that came to an idle worker and whose way to it (network, front end, tokenizing) is in the time."""
    weight: float = 1.0
    """What it counts, 0..1; below 1 where others tell partly the same."""
    end_ms: float = 0.0
    """When it ended, by the clock of whoever watched."""

    def __post_init__(self) -> None:
        if not self.elapsed_ms > 0:
            raise ConfigError(f"an interval must take time, not {self.elapsed_ms} ms")
        sums = (
            self.steps,
            self.sequence_steps,
            self.context_token_steps,
            self.prefill_tokens,
            self.prefill_squares,
            self.starts,
        )
        if not all(value >= 0 for value in sums) or not 0 < self.weight <= 1:
            raise ConfigError(f"an interval's sums must be at least 0 and its weight in (0, 1]: {self}")
        if self.steps == 0 and self.prefill_tokens == 0:
            raise ConfigError("an interval without a step tells nothing")

    @property
    def features(self) -> tuple[float, float, float, float, float, float]:
        """Factors of a, b, c, d, q and of the overhead o of a request."""
        return (
            self.steps,
            self.sequence_steps,
            self.context_token_steps / 1000,
            self.prefill_tokens,
            self.prefill_squares,
            self.starts,
        )

    def predicted_ms(self, coefficients: StepCoefficients, overhead_ms: float = 0.0) -> float:
        """The time that these coefficients give it."""
        return (
            coefficients.a_ms * self.steps
            + coefficients.b_ms_per_sequence * self.sequence_steps
            + coefficients.c_ms_per_1000_context_tokens * self.context_token_steps / 1000
            + coefficients.d_ms_per_prefill_token * self.prefill_tokens
            + coefficients.q_ms_per_square_token * self.prefill_squares
            + overhead_ms * self.starts
        )
