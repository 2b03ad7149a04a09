"""BlockMemory: the array in which an engine's KV lies, where possible in memory that its neighbours can read.

A memfd has no name and no file: it goes away with the last process that has it open. Others on this host open it
through the owner's `/proc` entry, which needs the same user, and see by a random word in it that it is the right one.
"""

from __future__ import annotations

import mmap
import os
import secrets
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.layout import BlockLayout

_HEAD_BYTES = 4096
"""Before the blocks; the word is at its beginning."""
_WORD_BYTES = 32


class ShareOffer(msgspec.Struct, frozen=True):
    """Where a neighbour finds an engine's blocks."""

    pid: int
    descriptor: int
    bytes: int
    word: str
    """That stands in it, in hex."""


class BlockMemory:
    """`blocks` blocks, all zero; memory is taken when they are written to."""

    def __init__(self, layout: BlockLayout, blocks: int, *, shared: bool = True) -> None:
        """`shared`: so that neighbours can read it, where the system can do that (Linux)."""
        self.layout = layout
        self.blocks = blocks
        self.offer: ShareOffer | None = None
        """None: nobody else can read it."""
        self._descriptor: int | None = None
        size = layout.block_bytes * blocks
        can_share = shared and hasattr(os, "memfd_create")
        flat = self._share(size) if can_share else np.zeros(size, np.uint8)
        self._flat = flat
        self.array: NDArray[Any] = flat.view(layout.dtype).reshape(blocks, *layout.shape)
        """[block, layer, key or value, KV head, token, head_dim]."""
        self._view = flat.data

    @property
    def address(self) -> int:
        """Of the first block, in this process."""
        return int(self._flat.ctypes.data)

    def bytes_of(self, number: int) -> memoryview:
        """One block."""
        size = self.layout.block_bytes
        return self._view[number * size : (number + 1) * size]

    def close(self) -> None:
        """Neighbours can't open it any more; the array stays usable as long as somebody has it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self.offer = None, None

    def _share(self, size: int) -> NDArray[np.uint8]:
        descriptor = os.memfd_create("pointsman-kv", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, _HEAD_BYTES + size)
            mapped = mmap.mmap(descriptor, _HEAD_BYTES + size)
        except BaseException:
            os.close(descriptor)
            raise
        word = secrets.token_bytes(_WORD_BYTES)
        mapped[:_WORD_BYTES] = word
        self._descriptor = descriptor
        self.offer = ShareOffer(os.getpid(), descriptor, size, word.hex())
        return np.frombuffer(mapped, np.uint8, offset=_HEAD_BYTES)


class Neighbour:
    """The blocks of another engine of this host, as long as it is open: a context. Read only."""

    def __init__(self, offer: ShareOffer, layout: BlockLayout) -> None:
        """Raises TransferError (LOCAL) where it can't be opened: another host or user, or a container."""
        self._layout = layout
        try:
            self._mapped = _opened(offer)
        except (OSError, ValueError) as error:
            raise TransferError(Failure.LOCAL, f"the source's memory can't be opened from here: {error}") from None
        self._view = memoryview(self._mapped)[_HEAD_BYTES:]

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.release()
        self._mapped.close()

    def copy_block(self, number: int, into: memoryview) -> None:
        """One block. Raises TransferError for a number that is not there."""
        size = self._layout.block_bytes
        if not 0 <= number * size <= len(self._view) - size:
            raise TransferError(Failure.CORRUPT, f"block {number} is outside of the source's memory")
        into[:] = self._view[number * size : (number + 1) * size]


def _opened(offer: ShareOffer) -> mmap.mmap:
    # What lies there in a container's own /proc may be anything: a pipe would be waited for.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(f"/proc/{offer.pid}/fd/{offer.descriptor}", flags)
    try:
        if os.fstat(descriptor).st_size != _HEAD_BYTES + offer.bytes:
            raise ValueError("its size is another one")
        mapped = mmap.mmap(descriptor, _HEAD_BYTES + offer.bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    if mapped[:_WORD_BYTES].hex() != offer.word:
        mapped.close()
        raise ValueError("it is not the one that was meant")
    return mapped
