"""BlockLayout: what a block of KV looks like, and whose it is. Blocks move only between equal ones."""

from __future__ import annotations

import math

import msgspec
import numpy as np


class BlockLayout(msgspec.Struct, frozen=True):
    """One block is an array [layer, key or value, KV head, token, head_dim], C order."""

    fingerprint: str
    """Of the model's weights and configuration: KV of another model is noise."""
    dtype: str
    """As numpy calls it, little-endian."""
    layers: int
    kv_heads: int
    block_tokens: int
    head_dim: int

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Of one block."""
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Of one block."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def bytes_per_token(self) -> int:
        """Of all layers."""
        return self.block_bytes // self.block_tokens

    def mismatch(self, other: BlockLayout) -> str | None:
        """What differs, with both values; None: nothing does."""
        for name in self.__struct_fields__:
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"{name} differs: {mine} here, {its} there"
        return None
