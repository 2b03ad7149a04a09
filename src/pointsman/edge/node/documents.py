"""What a node says and is asked over HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.transfer.probe.messages import MOST_PROBE_BYTES, LinkProbe

DEFAULT_PORT = 8090
MOST_SIZES = 16
LONGEST_PROBE_S = 200.0


class NodeFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`GET /v1/node`."""

    version: str
    host: str
    """Which host it runs on; nodes of one host may share memory."""
    transports: tuple[str, ...]
    """That probes from here can use, best first."""
    name: str = ""
    """That operators gave the machine; empty: none."""
    busy: bool = False
    """A probe is under way."""


class TicketOrder(msgspec.Struct, frozen=True):
    """`POST /v1/ticket`, if it has a body."""

    asker: str = ""
    """Id of the node that will probe."""


class Ticket(msgspec.Struct, frozen=True):
    """`POST /v1/ticket`: the right to probe this node once, soon."""

    ticket: str
    port: int
    """Of the same host, where probes are answered."""


class ProbeOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/probe`: probe the way to another node."""

    target: str
    """URL of the other node."""
    transports: tuple[str, ...] = ()
    """That may be used; empty: all that both have."""
    sizes_bytes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MOST_PROBE_BYTES)], ...], Meta(min_length=1, max_length=MOST_SIZES)
    ] = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
    size_s: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """What each size may take in each direction."""

    def __post_init__(self) -> None:
        if self.longest_s > LONGEST_PROBE_S:
            raise ValueError(
                f"{len(self.sizes_bytes)} sizes of {self.size_s:g} s each way may take {self.longest_s:g} s, more than "
                f"{LONGEST_PROBE_S:g}; give fewer sizes or less time"
            )

    @property
    def longest_s(self) -> float:
        """That its sizes may take together, both ways."""
        return 2 * 2 * self.size_s * len(self.sizes_bytes)


class Probed(msgspec.Struct, frozen=True):
    """Its answer."""

    probe: LinkProbe
