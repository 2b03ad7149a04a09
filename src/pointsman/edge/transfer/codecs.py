"""Codecs: blocks made smaller for slow links.

`zstd` gives back the same bits. `f16` and `int8` do not: what was fetched with them is not what the engine would have
computed, and stays so as long as the blocks are cached (docs/transfer.md says what that does to answers).
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.layout import BlockLayout

try:
    _zstd: Any = importlib.import_module("zstandard")
except ImportError:  # the extra `embedded` has it
    _zstd = None

NONE = "none"
_ZSTD_LEVEL = 1
_Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Codec:
    """One way of writing a block down."""

    name: str
    number: int
    """On the wire."""
    lossless: bool
    encode: Callable[[NDArray[Any]], _Bytes]
    decode: Callable[[_Bytes, BlockLayout], NDArray[Any]]
    """Raises ValueError for what this codec did not write."""

    def decoded(self, data: _Bytes, layout: BlockLayout) -> NDArray[Any]:
        """A block out of what came. Raises TransferError (CORRUPT)."""
        try:
            return self.decode(data, layout)
        except ValueError as error:
            raise TransferError(Failure.CORRUPT, f"a block can't be decoded from {self.name}: {error}") from None


def _plain(block: NDArray[Any]) -> _Bytes:
    return np.ascontiguousarray(block).data.cast("B")


def _of_plain(data: _Bytes, layout: BlockLayout) -> NDArray[Any]:
    return np.frombuffer(data, layout.dtype).reshape(layout.shape)


def _to_f16(block: NDArray[Any]) -> _Bytes:
    most = np.finfo(np.float16).max
    return _plain(np.clip(block, -most, most).astype("<f2"))


def _of_f16(data: _Bytes, layout: BlockLayout) -> NDArray[Any]:
    return np.frombuffer(data, "<f2").reshape(layout.shape).astype(layout.dtype)


def _to_int8(block: NDArray[Any]) -> _Bytes:
    """A scale for each layer, key or value, and head; then the values."""
    largest = np.abs(block).max(axis=(-2, -1), keepdims=True).astype("<f4")
    scales = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    values = np.rint(block / scales).astype(np.int8)
    return scales.tobytes() + values.tobytes()


def _of_int8(data: _Bytes, layout: BlockLayout) -> NDArray[Any]:
    layers, both, heads, *_ = layout.shape
    count = layers * both * heads
    scales = np.frombuffer(data, "<f4", count).reshape(layers, both, heads, 1, 1)
    values = np.frombuffer(data, np.int8, offset=count * 4).reshape(layout.shape)
    block: NDArray[Any] = (values * scales).astype(layout.dtype)
    return block


def _to_zstd(block: NDArray[Any]) -> _Bytes:
    """Bytes of equal weight side by side: exponents are alike, mantissas are noise."""
    turned = np.ascontiguousarray(block).view(np.uint8).reshape(-1, block.itemsize).T.tobytes()
    if _zstd is None:
        return zlib.compress(turned, 1)
    packed: bytes = _zstd.ZstdCompressor(level=_ZSTD_LEVEL).compress(turned)
    return packed


def _of_zstd(data: _Bytes, layout: BlockLayout) -> NDArray[Any]:
    size = layout.block_bytes
    if _zstd is None:
        unpacker = zlib.decompressobj()
        try:
            turned = unpacker.decompress(data, size + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from None
    else:
        try:
            if _zstd.frame_content_size(bytes(data[:18])) != size:
                raise ValueError("its size is another one")
            turned = _zstd.ZstdDecompressor().decompress(data, size)
        except _zstd.ZstdError as error:
            raise ValueError(str(error)) from None
    itemsize = np.dtype(layout.dtype).itemsize
    bytes_of = np.frombuffer(turned, np.uint8).reshape(itemsize, size // itemsize)
    return np.ascontiguousarray(bytes_of.T).view(layout.dtype).reshape(layout.shape)


_CODECS = {
    codec.name: codec
    for codec in (
        Codec(NONE, 0, True, _plain, _of_plain),
        Codec("f16", 1, False, _to_f16, _of_f16),
        Codec("int8", 2, False, _to_int8, _of_int8),
        # A source and a target that compress otherwise must not meet, so the other library has another name.
        Codec("zstd" if _zstd is not None else "zlib", 3 if _zstd is not None else 4, True, _to_zstd, _of_zstd),
    )
}


def codec(name: str) -> Codec:
    """By name. Raises TransferError (REFUSED) for an unknown one; `zstd` is `zlib` where its package is missing."""
    found = _CODECS.get(name)
    if found is None:
        raise TransferError(Failure.REFUSED, f"codec {name!r} is not known here; there are {', '.join(_CODECS)}")
    return found


def codec_names() -> tuple[str, ...]:
    """All that this side can read and write."""
    return tuple(_CODECS)


def compressing() -> str:
    """Name of the lossless codec that is there: zstd, or zlib where its package is missing."""
    return next(name for name, each in _CODECS.items() if each.lossless and name != NONE)


def most_bytes(layout: BlockLayout) -> int:
    """That any codec makes of one block, generously: what claims to be longer is no block."""
    return layout.block_bytes + layout.block_bytes // 64 + 4 * layout.layers * 2 * layout.kv_heads + 1024
