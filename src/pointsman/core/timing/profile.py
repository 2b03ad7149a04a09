"""What a profile of an engine holds, and where it may be used."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.timing.step import StepCoefficients

Range = tuple[int, int]
"""Least and most, both included."""


@dataclass(frozen=True, slots=True)
class Validity:
    """What was measured. Outside it the formula is a guess: effects part that went together."""

    prompt_tokens: Range
    output_tokens: Range
    sequences: Range
    """Side by side."""

    def __str__(self) -> str:
        parts = (("prompts", self.prompt_tokens), ("answers", self.output_tokens), ("side by side", self.sequences))
        return ", ".join(f"{name} {low:,}-{high:,}" for name, (low, high) in parts)

    def outside(
        self, prompt_tokens: float | None = None, output_tokens: float | None = None, sequences: float | None = None
    ) -> tuple[str, ...]:
        """In words, what of a workload was not measured; empty when all was. None is not looked at."""
        looked_at = (
            ("prompts of {:,.0f} tokens", prompt_tokens, self.prompt_tokens),
            ("answers of {:,.0f} tokens", output_tokens, self.output_tokens),
            ("{:,.0f} sequences side by side", sequences, self.sequences),
        )
        return tuple(
            f"{text.format(value)} (measured: {low:,}-{high:,})"
            for text, value, (low, high) in looked_at
            if value is not None and not low <= value <= high
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """Speed and KV size of one engine."""

    name: str
    step: StepCoefficients
    kv_tokens: int
    """Tokens that the KV cache holds."""
    kv_bytes_per_token: int
    gpu: str
    model: str
    engine: str
    tensor_parallel: int
    source: str
    """Where the coefficients come from."""
    mape: float | None = None
    """Mean absolute error against what they were fitted to, in percent; None = not known."""
    valid: Validity | None = None
    """What was measured; None = nobody knows, as for estimates."""
    overhead_ms: float = 0.0
    """Fixed time of a request outside of steps: network, HTTP, tokenizing; 0 = not known."""

    def num_blocks(self, block_size: int) -> int:
        """KV blocks of `block_size` tokens."""
        return max(1, self.kv_tokens // block_size)
