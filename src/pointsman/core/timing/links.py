"""Links over which KV moves: what of their nominal speed is usable, and how long one transfer takes on an idle one.

Usable speeds are those that operators and transfer engines report, in decimal GB/s one way; the floor is the latency of
a point-to-point transfer. Software that sets a transfer up takes longer (1 to 1,000 ms are reported): measure it, and
pass it as `floor_ms`.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.gpus import gpu

_LATENCY_MS = 0.01
_NETWORK_SHARE = 40 / 50
"""Of a network card's nominal speed, what transfers of KV reach: 40 GB/s of NDR's 50."""
_HOST_COPY_SHARE = 50 / 64
"""Of PCIe's nominal speed, what copies between GPU and host memory reach."""


@dataclass(frozen=True, slots=True)
class Link:
    """One way between two places. Raises ConfigError for one over which nothing could move."""

    name: str
    gb_per_s: float
    floor_ms: float = _LATENCY_MS
    """Added to each transfer, whatever its size."""

    def __post_init__(self) -> None:
        if not 0 < self.gb_per_s < math.inf:
            raise ConfigError(f"link {self.name}: gb_per_s must be above 0 and finite, not {self.gb_per_s}")
        if not 0 <= self.floor_ms < math.inf:
            raise ConfigError(
                f"link {self.name}: floor_ms must not be negative and must be finite, not {self.floor_ms}"
            )

    @property
    def bytes_per_ms(self) -> float:
        """The same speed."""
        return self.gb_per_s * 1e6

    def transfer_ms(self, size_bytes: float) -> float:
        """Time of one transfer that has the link for itself."""
        return self.floor_ms + size_bytes / self.bytes_per_ms


_LINKS = {
    link.name: link
    for link in (
        Link("nvlink", 600.0),
        Link("infiniband-ndr", 40.0),
        Link("roce", 20.0),
        Link("100gbe", 10.0),
        Link("25gbe", 2.5),
        Link("pcie5", 50.0),
    )
}
DEFAULT_LINK = _LINKS["infiniband-ndr"]


def link_names() -> tuple[str, ...]:
    """All known links, as `link` takes them."""
    return tuple(_LINKS)


def link(text: str) -> Link:
    """A link by name, or by speed and floor: `roce`, `roce:5ms`, `12.5GB/s:0.5ms`. ConfigError says what is wrong."""
    speed, _, floor = text.strip().lower().partition(":")
    known = _LINKS.get(speed)
    if known is None:
        gb_per_s = _number(speed, "gb/s")
        if gb_per_s is None:
            near = difflib.get_close_matches(speed, _LINKS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(
                f"link {text!r} is not known{hint} Known: {', '.join(_LINKS)}; or a speed such as 12.5GB/s"
            )
        known = Link(speed, gb_per_s)
    if not floor:
        return known
    floor_ms = _number(floor, "ms")
    if floor_ms is None:
        raise ConfigError(f"link {text!r}: the floor is not a time in ms, such as {speed}:0.5ms")
    return replace(known, name=text, floor_ms=floor_ms)


def network_link(gpu_name: str, gpus: int = 1) -> Link:
    """To other nodes, from a worker of so many GPUs, each with a network card of its own: what of them is usable."""
    found = gpu(gpu_name)
    return Link(f"network of {gpus} {found.name}", found.net_gb_per_s * _NETWORK_SHARE * gpus)


def node_link(gpu_name: str, gpus: int = 1) -> Link:
    """To other GPUs of the same node, over NVLink where there is one."""
    found = gpu(gpu_name)
    return Link(f"node of {gpus} {found.name}", found.peer_gb_per_s * gpus)


def host_link(gpu_name: str, gpus: int = 1) -> Link:
    """To and from the memory of the host."""
    found = gpu(gpu_name)
    return Link(f"host of {gpus} {found.name}", found.pcie_gb_per_s * _HOST_COPY_SHARE * gpus)


def _number(text: str, unit: str) -> float | None:
    if not text.endswith(unit):
        return None
    try:
        return float(text.removesuffix(unit))
    except ValueError:
        return None
