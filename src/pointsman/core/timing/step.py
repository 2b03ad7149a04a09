"""Step time of one engine: how long one pass through the model takes.

`step_ms = a + b·C + c·Σctx/1000 + d·prefill_tokens + q·Σ(end² − start²)` with C sequences decoded in the step, ctx
their KV tokens, and a chunk of a prompt computed from token `start` to token `end`: attention within the prompt.
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

    q_ms_per_square_token: float = 0.0
    """Attention of a prompt's tokens to those before them: a prompt of n tokens costs q·n² in all."""

    def step_ms(
        self, sequences: float, context_tokens: float, prefill_tokens: float, prefill_squares: float = 0.0
    ) -> float:
        """Milliseconds of a step that decodes `sequences` over `context_tokens` KV tokens and prefills some tokens.

        `prefill_squares`: Σ(end² − start²) over the chunks of prompts in it.
        """
        return (
            self.a_ms
            + self.b_ms_per_sequence * sequences
            + self.c_ms_per_1000_context_tokens * context_tokens / 1000
            + self.d_ms_per_prefill_token * prefill_tokens
            + self.q_ms_per_square_token * prefill_squares
        )

    def scaled(self, factor: float) -> StepCoefficients:
        """Those of an engine that takes `factor` times as long."""
        return StepCoefficients(
            self.a_ms * factor,
            self.b_ms_per_sequence * factor,
            self.c_ms_per_1000_context_tokens * factor,
            self.d_ms_per_prefill_token * factor,
            self.q_ms_per_square_token * factor,
        )
