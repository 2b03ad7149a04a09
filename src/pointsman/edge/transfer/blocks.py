"""The two ends of a transfer: who has blocks, who wants them, and what a transfer was like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Contents = NDArray[Any]
"""One block [layer, key or value, KV head, token, head_dim]."""
Put = Callable[[int, Contents], None]
"""Takes the verified contents of the block at that place in the list of those wanted; they are valid during the call.
What it raises ends the transfer."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """One block of a sequence."""

    number: int
    """Where it lies in the memory of the engine that has it."""
    hash: int
    """Chained hash of its tokens and all before them, unsigned 64 bit: what is in it, wherever it lies."""
    tokens: int
    """How many of its places are filled; the last block of a prompt may not be full."""


class Grant(Protocol):
    """Leave to read some blocks, which stay as they are until it ends."""

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        ...

    @property
    def blocks(self) -> Mapping[int, BlockName]:
        """By number."""
        ...

    def extend(self) -> None:
        """Somebody still wants them: the lease begins anew."""

    def release(self) -> None:
        """Nobody wants them any more."""


class KvSource(Protocol):
    """Who knows which token allows what."""

    def grant(self, token: str) -> Grant | None:
        """None: no such token, or no longer."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A source of blocks."""

    name: str
    """Of the engine, for reports and logs."""
    host: str
    port: int
    token: str
    """Allows to read what was granted with it."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """One transfer that ended well."""

    source: str
    target: str
    blocks: int
    bytes: int
    """Of KV."""
    wire_bytes: int
    """What of it was sent, after the codec; where memory is shared, all that was copied."""
    ms: float
    """From the first packet to the last block in its place."""
    first_byte_ms: float
    """Until the source had answered: what a transfer takes however small it is."""
    transport: str
    codec: str
    resumed: int = 0
    """How often it went on over a new connection."""
    repeated: int = 0
    """Blocks that came again because their checksum was wrong."""


class Transfer(Protocol):
    """Reads blocks out of another engine's memory."""

    async def read(self, peer: Peer, wanted: Sequence[BlockName], put: Put) -> TransferReport:
        """Fetch blocks in order, some maybe again later. Raises TransferError; what was put before is right."""
        ...

    async def renew(self, peer: Peer) -> bool:
        """Tell the source that its blocks are still wanted; False when it could not be told, or does not know."""
        ...

    async def release(self, peer: Peer) -> bool:
        """Tell the source that its blocks are not needed any more; False as with `renew`."""
        ...
