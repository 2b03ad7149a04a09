"""Size and speed of one modelled engine."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients

DEFAULT_OUTPUT_IDS = tuple(range(1000, 1256))
"""Tokens that a model generates unless it is told which."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A place below the GPU for cached blocks that were evicted there."""

    name: str
    """As KV events call it, for example `CPU` or `DISK`."""
    blocks: int
    """How many it holds; the least recently used ones go to the next tier below, or are lost."""
    load_ms_per_block: float
    """Copying one block to the GPU."""
    floor_ms: float = 0.0
    """Added once a request that loads any."""

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ConfigError(f"tier {self.name}: blocks must be at least 1, not {self.blocks}")
        if not (self.load_ms_per_block >= 0 and self.floor_ms >= 0):
            raise ConfigError(f"tier {self.name}: load_ms_per_block and floor_ms must not be negative")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. Defaults are those of a served vLLM."""

    step: StepCoefficients
    num_blocks: int
    """KV blocks in all."""
    block_size: int = 16
    """Tokens a block."""
    max_num_seqs: int = 256
    """Sequences computed side by side."""
    max_batched_tokens: int = 8192
    """Token budget of one step, decodes and prefill chunks together."""
    max_model_len: int = 8192
    """Prompt and answer together, in tokens."""
    prefix_caching: bool = True
    output_ids: tuple[int, ...] = DEFAULT_OUTPUT_IDS
    """Token ids that answers are made of."""
    tiers: tuple[TierConfig, ...] = ()
    """Below the GPU, nearest first."""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs}), "
                "or some decodes would never get their turn"
            )
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ConfigError(
                f"max_model_len ({self.max_model_len}) is more than the KV cache holds "
                f"({self.num_blocks} blocks x {self.block_size} tokens); lower it or raise num_blocks"
            )
        if len({"GPU", *(tier.name for tier in self.tiers)}) <= len(self.tiers):
            raise ConfigError("tiers need different names, other than GPU")
        if self.tiers and not self.prefix_caching:
            raise ConfigError("tiers hold cached blocks: they need prefix_caching")
        if not self.output_ids:
            raise ConfigError("output_ids is empty: an engine needs at least one token that it can generate")
