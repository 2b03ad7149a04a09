"""Matrix products whose rows do not depend on how many there are.

A BLAS takes other kernels, which round otherwise, for other numbers of rows. So rows are always multiplied in tiles of
one fixed number, the last one filled up. Within a tile a row's result must not depend on where it stands and on what
stands beside it: `rows_are_alike` tries that, and where it does not hold a tile is one row.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import numpy as np

from pointsman.edge.engines.embedded.weights import Array

TILE_ROWS = 8

_log = logging.getLogger("pointsman.engines.embedded")


def padded(rows: int, tile: int) -> int:
    """Rows of whole tiles that hold so many."""
    return -(-rows // tile) * tile


def times(rows: Array, matrix: Array, tile: int) -> Array:
    """`rows @ matrix`, tile by tile. The number of rows is a multiple of `tile`, both are contiguous."""
    count = len(rows)
    if count == tile:
        product: Array = rows @ matrix
        return product
    out = np.empty((count, matrix.shape[1]), np.float32)
    for start in range(0, count, tile):
        np.matmul(rows[start : start + tile], matrix, out=out[start : start + tile])
    return out


@lru_cache(maxsize=64)
def tile_rows(shapes: tuple[tuple[int, int], ...]) -> int:
    """Rows a tile for matrices of these shapes: TILE_ROWS, or 1 where this machine's BLAS makes rows differ."""
    odd = [shape for shape in dict.fromkeys(shapes) if not rows_are_alike(*shape, TILE_ROWS)]
    if not odd:
        return TILE_ROWS
    _log.warning("rows of a product with a %d × %d matrix depend on their place here: computed one by one", *odd[0])
    return 1


def rows_are_alike(inner: int, outer: int, tile: int) -> bool:
    """Whether a row's product has the same bits at every place of a tile, whatever the other rows are."""
    random = np.random.default_rng(inner * 31 + outer)
    outer = min(outer, 4096)
    matrix = random.standard_normal((inner, outer), dtype=np.float32)
    row = random.standard_normal(inner, dtype=np.float32)
    seen: bytes | None = None
    for place in range(tile):
        rows = random.standard_normal((tile, inner), dtype=np.float32)
        rows[place] = row
        product = times(rows, matrix, tile)[place].tobytes()
        if seen is not None and product != seen:
            return False
        seen = product
    return True
