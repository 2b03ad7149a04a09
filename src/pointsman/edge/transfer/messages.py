"""What the two sides of a transfer say to each other, over `framing`.

The side that reads asks, `read`, `renew` or `release`, with the token that the source made for these blocks. Without a
right one the source closes without a word. It answers each with one `Answer`; after that of a `read` come the frames of
the blocks in the order asked for, each followed by its bytes where they go over this connection.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import msgspec

from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.memory import ShareOffer

PROTOCOL = 1
_FRAME = struct.Struct("<IIIIQQ")
FRAME_BYTES = _FRAME.size


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the side that reads."""

    token: str
    do: Literal["read", "renew", "release"]
    protocol: int = PROTOCOL
    layout: BlockLayout | None = None
    blocks: tuple[int, ...] = ()
    """Numbers in the source's memory."""
    transports: tuple[str, ...] = ()
    """That it can and may use, best first."""
    codec: str = "none"


class NixlOffer(msgspec.Struct, frozen=True):
    """What NIXL needs to read out of the source's memory."""

    agent: bytes
    """Its metadata."""
    address: int
    """Of the first block."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the source."""

    protocol: int = PROTOCOL
    error: str = ""
    """Why it does not do it."""
    transport: str = ""
    codec: str = "none"
    share: ShareOffer | None = None
    nixl: NixlOffer | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """Before the bytes of each block."""

    number: int
    tokens: int
    wire_bytes: int
    """That follow; 0 where they are read out of the source's memory."""
    codec: int
    hash: int
    checksum: int
    """xxh3_64 of the bytes as they are sent, or as they lie in the source's memory."""

    def pack(self) -> bytes:
        """As it is sent."""
        return _FRAME.pack(self.number, self.tokens, self.wire_bytes, self.codec, self.hash, self.checksum)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Frame:
        """Of FRAME_BYTES bytes."""
        return cls(*_FRAME.unpack(data))
