"""KvBlocks: the KV cache as pages. What is moved, kept or compared is a whole block, with all layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.embedded.model_config import ModelConfig
from pointsman.edge.engines.embedded.weights import Array
from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.memory import BlockMemory

SPAN_TOKENS = 64
"""Attention looks at that many positions at a time, from 0 on, wherever their blocks lie."""
NOWHERE = 0
"""A block of zeros that is nobody's: stands in tables behind the last block of a sequence."""


def layout_of(config: ModelConfig, block_size: int, fingerprint: str) -> BlockLayout:
    """Of the blocks of a model's KV."""
    return BlockLayout(fingerprint, "<f4", config.layers, config.kv_heads, block_size, config.head_dim)


class KvBlocks:
    """`blocks` blocks of `block_size` tokens; ids go from 1 to `blocks`, 0 is NOWHERE.

    One array [block, layer, key or value, KV head, token, head_dim], so that a block lies in one piece. It is made of
    zeros that the system provides when they are written to: unused blocks take no memory.
    """

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, *, fingerprint: str = "", shared: bool = False
    ) -> None:
        """`shared`: other engines of this host can read them."""
        if block_size < 1 or SPAN_TOKENS % block_size:
            raise EngineError(f"block_size is {block_size}: it must divide {SPAN_TOKENS}")
        self.block_size = block_size
        self.blocks = blocks
        self.span_blocks = SPAN_TOKENS // block_size
        """Blocks of SPAN_TOKENS positions."""
        layout = layout_of(config, block_size, fingerprint)
        self.memory = BlockMemory(layout, blocks + 1, shared=shared)
        """Where they lie, and NOWHERE before them."""
        self._data: NDArray[np.float32] = self.memory.array

    @property
    def block_bytes(self) -> int:
        """Of one block, all layers."""
        return int(self._data[0].nbytes)

    def block(self, number: int) -> Array:
        """The contents of one block [layer, key or value, KV head, token, head_dim], to be read or written."""
        contents: Array = self._data[number]
        return contents

    def write(
        self, layer: int, blocks: NDArray[np.intp], offsets: NDArray[np.intp], keys: Array, values: Array
    ) -> None:
        """Keys and values [row, KV head, head_dim] to a block and a place in it for each row."""
        data = self._data
        data[blocks, layer, 0, :, offsets] = keys
        data[blocks, layer, 1, :, offsets] = values

    def span(self, layer: int, tables: NDArray[np.intp]) -> tuple[Array, Array]:
        """Keys and values […, KV head, SPAN_TOKENS, head_dim] of the blocks in `tables` […, span_blocks]."""
        both = self._data[tables, layer]
        # […, block, 2, KV head, token, dim] → […, 2, KV head, block · token, dim]
        both = np.moveaxis(both, -5, -3)
        *front, _, _, dim = both.shape
        spread = np.ascontiguousarray(both).reshape(*front, SPAN_TOKENS, dim)
        return spread[..., 0, :, :, :], spread[..., 1, :, :, :]
