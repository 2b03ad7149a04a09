"""What the two sides of a probe say to each other, over `framing`. The side that asks measures.

It asks `open` first, with the ticket that the other side's node gave it, then `mine` where both read each other's
memory, then `ping`, `take` and `give` as it likes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pointsman.edge.transfer.memory import ShareOffer
from pointsman.edge.transfer.messages import NixlOffer
from pointsman.edge.transfer.probe.interface import Interface

PROTOCOL = 1
UNIT_BYTES = 64 << 10
"""What is read out of memory is a multiple of it."""
MOST_PROBE_BYTES = 1 << 30
"""Of one `take` or `give`."""


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the side that measures."""

    do: Literal["open", "mine", "ping", "take", "give"]
    """`take`: so many bytes follow, or are to be read out of the asker's memory; `give`: the same the other way."""
    ticket: str = ""
    protocol: int = PROTOCOL
    host: str = ""
    """Which host the asker runs on."""
    transports: tuple[str, ...] = ()
    """That it can use, best first."""
    size_bytes: int = 0
    share: ShareOffer | None = None
    nixl: NixlOffer | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the other side."""

    error: str = ""
    transport: str = ""
    interface: Interface | None = None
    share: ShareOffer | None = None
    nixl: NixlOffer | None = None


class Sample(msgspec.Struct, frozen=True):
    """Transfers of one size."""

    size_bytes: int
    took_ms: float
    """From the first word to the last byte; the median."""
    count: int

    @property
    def gb_per_s(self) -> float:
        """Decimal, the set-up counted in."""
        return self.size_bytes / self.took_ms / 1e6


class LinkProbe(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one probe found out of the way between two machines, in both directions."""

    transport: str
    round_trip_ms: float
    """Of the smallest message, median."""
    forth: tuple[Sample, ...] = ()
    """From the asker to the other side, small sizes first."""
    back: tuple[Sample, ...] = ()
    interface: Interface | None = None
    """Of the asker."""
    peer_interface: Interface | None = None
    notes: tuple[str, ...] = ()
    """What was left out or done in another way, and why."""
    broke: str = ""
    """Why it ended early; empty: it did not."""
