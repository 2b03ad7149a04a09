"""LinkTimes: how long KV takes from one machine to another one, as policies are told. Never changed once made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pointsman.core.timing.links import DEFAULT_LINK

SIZE_CLASSES_BYTES = (1 << 20, 16 << 20, 256 << 20)
"""Upper bounds of the classes of transfers by size that are learned apart; the last class has none."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """Of one direction between two machines: `floor_ms + bytes / bytes_per_ms[class of size]` where it is alone."""

    floor_ms: float = DEFAULT_LINK.floor_ms
    """Setting a transfer up, whatever its size."""
    bytes_per_ms: tuple[float, float, float, float] = (DEFAULT_LINK.bytes_per_ms,) * 4
    """By class of size."""
    spread: float = 2.0
    """P90 of actual over predicted time."""
    seen: float = 0.0
    """Transfers and measurements that it rests on, older ones counting less; 0: a prior."""

    def ms(self, size_bytes: float, under_way: int = 0) -> float:
        """Predicted time of one transfer, when so many others share the link evenly."""
        return self.floor_ms + size_bytes * (1 + under_way) / self.bytes_per_ms[size_class(size_bytes)]


PRIOR = LinkEstimate()


class Unmeasured(Protocol):
    """What is thought of a pair before anything is seen of it."""

    def of(self, source: int, target: int) -> LinkEstimate:
        """Of one direction."""
        ...


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """By numbers of machines (`Column.NODE`), source and target."""

    pairs: Mapping[tuple[int, int], LinkEstimate] = field(default_factory=dict)
    otherwise: LinkEstimate = PRIOR
    """Of pairs of which nothing is known."""
    by_place: Unmeasured | None = None
    """Of pairs of which nothing was seen, but where they are; None: as `otherwise`."""

    def of(self, source: int, target: int) -> LinkEstimate:
        """The estimate of one direction."""
        known = self.pairs.get((source, target))
        if known is not None:
            return known
        return self.otherwise if self.by_place is None else self.by_place.of(source, target)


NO_LINKS = LinkTimes()


def size_class(size_bytes: float) -> int:
    """Number of the class of size."""
    for number, most in enumerate(SIZE_CLASSES_BYTES):
        if size_bytes <= most:
            return number
    return len(SIZE_CLASSES_BYTES)
