"""Attention over paged KV, the same bits for any batch, chunk and place of blocks.

Queries come in tiles of one fixed number, keys in spans of SPAN_TOKENS positions counted from the beginning of the
sequence. A span after the other changes the running maximum, sum and weighted values; positions that a query may not
see change nothing, not even a bit: exp(-inf) = 0 is added, and all is multiplied by exp(0) = 1.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from pointsman.edge.engines.embedded.batch import Ints, QueryGroup
from pointsman.edge.engines.embedded.kv_blocks import SPAN_TOKENS, KvBlocks
from pointsman.edge.engines.embedded.weights import Array

A = TypeVar("A", Array, Ints)

_UNSEEN = np.float32(-np.inf)
_SPAN = np.arange(SPAN_TOKENS)


def attend(queries: Array, group: QueryGroup, kv: KvBlocks, layer: int, out: Array) -> None:
    """Write to the group's rows of `out` [row, heads · head_dim] what its queries [row, KV head, of it, dim] find.

    Queries are scaled by 1 / sqrt(head_dim) already.
    """
    tiles, width = group.rows.shape
    _, kv_heads, per_head, dim = queries.shape
    mine = queries[group.rows].transpose(0, 2, 1, 3, 4).reshape(tiles, kv_heads, width * per_head, dim)
    of_one = group.tables.ndim == 2
    state = _State(tiles, kv_heads, width * per_head, dim)
    spans = int(group.spans.max())
    for span in range(spans):
        # Tiles in front see less: those of a long prompt in rising order, those of many sequences in any.
        live = None if int(group.spans.min()) > span else np.flatnonzero(group.spans > span)
        table = group.tables[span] if of_one else _rows(group.tables[:, span], live)
        keys, values = kv.span(layer, table)
        unseen = _unseen(_rows(group.positions, live), span, per_head)
        state.see(live, _rows(mine, live), keys, values, unseen)
    found = state.result().reshape(tiles, kv_heads, width, per_head, dim).transpose(0, 2, 1, 3, 4)
    flat = found.reshape(tiles * width, kv_heads * per_head * dim)
    out[group.rows.reshape(-1)[group.taken]] = flat[group.taken]


class _State:
    """Running maximum, sum and weighted values of each query."""

    __slots__ = ("_most", "_sum", "_values")

    def __init__(self, tiles: int, kv_heads: int, rows: int, dim: int) -> None:
        self._most = np.full((tiles, kv_heads, rows), _UNSEEN)
        self._sum = np.zeros((tiles, kv_heads, rows), np.float32)
        self._values = np.zeros((tiles, kv_heads, rows, dim), np.float32)

    def see(self, live: Ints | None, queries: Array, keys: Array, values: Array, unseen: Array | None) -> None:
        """One more span; `live`: the tiles that see it, None for all."""
        scores = queries @ keys.swapaxes(-1, -2)
        if unseen is not None:
            scores += unseen
        most, total, weighted = (_rows(each, live) for each in (self._most, self._sum, self._values))
        higher = np.maximum(most, scores.max(axis=-1))
        shares = np.exp(scores - higher[..., None])
        kept = np.exp(most - higher)
        total = total * kept + shares.sum(axis=-1)
        weighted = weighted * kept[..., None] + shares @ values
        if live is None:
            self._most, self._sum, self._values = higher, total, weighted
        else:
            self._most[live], self._sum[live], self._values[live] = higher, total, weighted

    def result(self) -> Array:
        """[tile, KV head, query and head, dim]."""
        found: Array = self._values / self._sum[..., None]
        return found


def _unseen(positions: Ints, span: int, per_head: int) -> Array | None:
    """What is added to scores [tile, 1, query and head, token]: -inf where a query may not see; None if all may."""
    first = span * SPAN_TOKENS
    if int(positions.min()) >= first + SPAN_TOKENS - 1:
        return None
    hidden = np.where(first + _SPAN > positions[..., None], _UNSEEN, np.float32(0))
    tiles, width, _ = hidden.shape
    return np.repeat(hidden, per_head, axis=1).reshape(tiles, 1, width * per_head, SPAN_TOKENS)


def _rows(array: A, live: Ints | None) -> A:
    return array if live is None else array[live]
