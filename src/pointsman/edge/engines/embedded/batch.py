"""Batch: what one step computes, laid out as rows of tokens and as tiles of queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.edge.engines.embedded.kv_blocks import NOWHERE, SPAN_TOKENS, KvBlocks

Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens of one sequence, all tokens before which are computed."""

    tokens: Sequence[int]
    first: int
    """Position of the first of them."""
    blocks: Sequence[int]
    """Ids of the sequence's KV blocks from its beginning; they hold at least these tokens."""
    wanted: bool
    """The logits after its last token are asked for."""
    told: int = 0
    """Those after so many of its first tokens are, too, its last one not among them."""


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Tiles of queries that attention treats together: of one sequence, or one each of many sequences."""

    rows: Ints
    """[tile, query]: row of each query; places that are left over repeat the tile's first row."""
    taken: Ints
    """Numbers of the places, counted through all tiles, that are none of those."""
    positions: Ints
    """[tile, query]."""
    tables: Ints
    """[tile, span, block of it], or [span, block of it] where all tiles are of one sequence."""
    spans: Ints
    """[tile]: how many spans its queries see."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one step, filled up to whole tiles with rows that go nowhere."""

    tokens: Ints
    positions: Ints
    blocks: Ints
    """Block to which each row's key and value go."""
    offsets: Ints
    """Place within it."""
    groups: tuple[QueryGroup, ...]
    wanted: Ints
    """Rows whose logits are asked for, in the order of the parts and of their tokens."""


def lay_out(parts: Sequence[Part], kv: KvBlocks, tile: int) -> Batch:
    """The batch of some parts, at least one."""
    tokens, positions, blocks, offsets, tiles = [], [], [], [], []
    wanted: list[int] = []
    start = 0
    for part in parts:
        count = len(part.tokens)
        at = np.arange(part.first, part.first + count)
        tokens.append(np.asarray(part.tokens, np.intp))
        positions.append(at)
        blocks.append(np.asarray(part.blocks, np.intp)[at // kv.block_size])
        offsets.append(at % kv.block_size)
        tiles.append(_tiles(start, count, tile))
        wanted += range(start, start + part.told)
        start += count
        if part.wanted:
            wanted.append(start - 1)
    spare = -start % tile
    nothing = np.zeros(spare, np.intp)
    every_position = np.concatenate([*positions, nothing])
    # Rows that fill up write to NOWHERE, which nobody may see: its places stay zero up to the one that is overwritten.
    return Batch(
        tokens=np.concatenate([*tokens, nothing]),
        positions=every_position,
        blocks=np.concatenate([*blocks, nothing + NOWHERE]),
        offsets=np.concatenate([*offsets, nothing]),
        groups=tuple(_groups(parts, tiles, every_position, kv)),
        wanted=np.array(wanted, np.intp),
    )


def _tiles(start: int, count: int, tile: int) -> tuple[Ints, Ints]:
    """[tile, query] rows of a part, and which places are its own."""
    places = -(-count // tile) * tile
    numbers = np.arange(places)
    firsts = numbers // tile * tile
    rows = start + np.where(numbers < count, numbers, firsts)
    return rows.reshape(-1, tile), numbers[:count]


def _groups(
    parts: Sequence[Part], tiles: Sequence[tuple[Ints, Ints]], positions: Ints, kv: KvBlocks
) -> Iterable[QueryGroup]:
    """Parts of one tile together, larger ones each by itself."""
    small = [number for number, (rows, _) in enumerate(tiles) if len(rows) == 1]
    if small:
        rows = np.concatenate([tiles[number][0] for number in small])
        width = rows.shape[1]
        taken = np.concatenate([place * width + tiles[number][1] for place, number in enumerate(small)])
        at = positions[rows]
        spans = at.max(axis=1) // SPAN_TOKENS + 1
        most = int(spans.max())
        tables = np.stack([_table(parts[number].blocks, most, kv.span_blocks) for number in small])
        yield QueryGroup(rows, taken, at, tables, spans)
    for number, (rows, taken) in enumerate(tiles):
        if len(rows) > 1:
            at = positions[rows]
            spans = at.max(axis=1) // SPAN_TOKENS + 1
            yield QueryGroup(rows, taken, at, _table(parts[number].blocks, int(spans.max()), kv.span_blocks), spans)


def _table(blocks: Sequence[int], spans: int, span_blocks: int) -> Ints:
    """[span, block of it], NOWHERE behind the end."""
    table = np.full(spans * span_blocks, NOWHERE, np.intp)
    held = np.asarray(blocks[: len(table)], np.intp)
    table[: len(held)] = held
    return table.reshape(spans, span_blocks)
