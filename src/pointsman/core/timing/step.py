"""Step time of one engine: how long one pass through the model takes.

`step_ms = a + b·C + c·Σctx/1000 + d·prefill_tokens` with C sequences decoded in the step and ctx their KV tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """Coefficients of the step-time formula."""

    a_ms: float
    """Weights and launch, each step."""
    b_ms_per_sequence: float
    """Sampling and routing, each decoded sequence."""
    c_ms_per_1000_context_tokens: float
    """Reading the KV cache."""
    d_ms_per_prefill_token: float
    """Computing the prompt; 1000/d is the peak prefill rate in tokens a second."""

    def step_ms(self, sequences: int, context_tokens: int, prefill_tokens: int) -> float:
        """Milliseconds of a step that decodes `sequences` over `context_tokens` KV tokens and prefills some tokens."""
        return (
            self.a_ms
            + self.b_ms_per_sequence * sequences
            + self.c_ms_per_1000_context_tokens * context_tokens / 1000
            + self.d_ms_per_prefill_token * prefill_tokens
        )
