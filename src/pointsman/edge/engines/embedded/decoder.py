"""Decoder: one step of a Llama, Qwen2 or Qwen3 model over a batch."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pointsman.edge.engines.embedded.attention import attend
from pointsman.edge.engines.embedded.batch import Batch, Part, lay_out
from pointsman.edge.engines.embedded.fingerprint import fingerprint
from pointsman.edge.engines.embedded.kv_blocks import SPAN_TOKENS, KvBlocks
from pointsman.edge.engines.embedded.linear import TILE_ROWS, padded, rows_are_alike, tile_rows, times
from pointsman.edge.engines.embedded.model_config import ModelConfig
from pointsman.edge.engines.embedded.rope import Rope
from pointsman.edge.engines.embedded.weights import Array, LayerWeights, Weights


class Decoder:
    """Computes logits and fills KV blocks. Its results have the same bits for any batching, chunking and caching."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self._weights = weights
        self._rope = Rope(config)
        self._eps = np.float32(config.rms_eps)
        self._scale = np.float32(1 / math.sqrt(config.head_dim))
        self.tile = self._tile()
        """Rows that are computed together."""

    @cached_property
    def fingerprint(self) -> str:
        """Of the model; the first look takes as long as reading all its weights."""
        return fingerprint(self.config, self._weights)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self._weights.bytes

    def forward(self, parts: list[Part], kv: KvBlocks) -> Array:
        """Logits [row, vocabulary] of the tokens whose parts want them; keys and values go to their blocks."""
        batch = lay_out(parts, kv, self.tile)
        rows = self._weights.embeddings[batch.tokens]
        for number, layer in enumerate(self._weights.layers):
            rows += self._attention(number, layer, rows, batch, kv)
            rows += self._feed_forward(layer, rows)
        return self._logits(rows, batch)

    def _attention(self, number: int, layer: LayerWeights, rows: Array, batch: Batch, kv: KvBlocks) -> Array:
        config = self.config
        count = len(rows)
        both = times(self._normed(rows, layer.attention_norm), layer.qkv, self.tile)
        if layer.qkv_bias is not None:
            both += layer.qkv_bias
        heads = both.reshape(count, config.heads + 2 * config.kv_heads, config.head_dim)
        queries = heads[:, : config.heads]
        keys = heads[:, config.heads : config.heads + config.kv_heads]
        values = heads[:, config.heads + config.kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = self._normed(queries, layer.query_norm), self._normed(keys, layer.key_norm)
        queries = self._rope.turn(queries, batch.positions) * self._scale
        kv.write(number, batch.blocks, batch.offsets, self._rope.turn(keys, batch.positions), values)
        grouped = queries.reshape(count, config.kv_heads, config.group, config.head_dim)
        found = np.zeros((count, config.heads * config.head_dim), np.float32)
        for group in batch.groups:
            attend(grouped, group, kv, number, found)
        return times(found, layer.attention_out, self.tile)

    def _feed_forward(self, layer: LayerWeights, rows: Array) -> Array:
        both = times(self._normed(rows, layer.feed_forward_norm), layer.gate_up, self.tile)
        gate, up = both[:, : self.config.feed_forward], both[:, self.config.feed_forward :]
        return times(_silu(gate) * up, layer.down, self.tile)

    def _logits(self, rows: Array, batch: Batch) -> Array:
        count = len(batch.wanted)
        if not count:
            return np.zeros((0, self.config.vocabulary), np.float32)
        wanted = np.zeros((padded(count, self.tile), self.config.hidden), np.float32)
        wanted[:count] = rows[batch.wanted]
        return times(self._normed(wanted, self._weights.norm), self._weights.output, self.tile)[:count]

    def _normed(self, rows: Array, weight: Array) -> Array:
        """Divided by the root of the mean square of the last axis."""
        square = np.square(rows).mean(axis=-1, keepdims=True)
        normed: Array = rows / np.sqrt(square + self._eps) * weight
        return normed

    def _tile(self) -> int:
        config = self.config
        layer = self._weights.layers[0]
        matrices = (layer.qkv, layer.attention_out, layer.gate_up, layer.down, self._weights.output)
        tile = tile_rows(tuple((matrix.shape[0], matrix.shape[1]) for matrix in matrices))
        queries = TILE_ROWS * config.group
        alike = rows_are_alike(config.head_dim, SPAN_TOKENS, queries) and rows_are_alike(
            SPAN_TOKENS, config.head_dim, queries
        )
        return tile if alike else 1


def _silu(values: Array) -> Array:
    """x / (1 + exp(-x)); what overflows is 0 in the end, as it should be."""
    with np.errstate(over="ignore"):
        activated: Array = values / (1 + np.exp(-values))
    return activated
