"""What is thought of a link of which nothing was measured: by how near to each other its two machines are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from pointsman.core.timing.link_times import PRIOR, LinkEstimate
from pointsman.core.timing.links import DEFAULT_LINK, Link

_SAME_NODE = Link("same node", 200.0, 0.05)
_SAME_RACK = Link("same rack", 100.0, 0.2)
_SAME_ZONE = Link("same zone", 40.0, 0.5)
HOPE = 2.0
"""A link of which nothing was seen is taken to be so many times as fast as its prior. A wrong hope costs one transfer,
which teaches; what is thought to be too slow is never tried, and nothing corrects it."""

Place = tuple[str, ...]
"""From near to far, as `WorkerSpec.place`: node, rack, zone …; an empty name is an unknown one."""


@dataclass(frozen=True, slots=True)
class LinkPriors:
    """Links by the nearest level of the topology that two machines share."""

    node: Link = _SAME_NODE
    """Within one machine."""
    levels: tuple[Link, ...] = (_SAME_RACK, _SAME_ZONE)
    """By level beyond the machine, near to far; levels beyond the last one are like it."""
    network: Link = DEFAULT_LINK
    """Where they share nothing, or nobody said where they are."""

    def at(self, level: int | None) -> Link:
        """The link at a level as `shared_level` counts them."""
        if level is None or (level > 0 and not self.levels):
            return self.network
        return self.node if level == 0 else self.levels[min(level, len(self.levels)) - 1]


USUAL_PRIORS = LinkPriors()


def shared_level(one: Place, other: Place) -> int | None:
    """The nearest level at which both are in one place: 0 the machine, then those beyond it; None: at none.

    Names count within the level above only: rack r1 of zone a is another one than rack r1 of zone b.
    """
    nearest = None
    for level in reversed(range(min(len(one), len(other)))):
        if one[level] and other[level]:
            if one[level] != other[level]:
                break
            nearest = level
    return nearest


@dataclass(frozen=True, slots=True)
class PlacePriors:
    """Estimates that rest on places alone. Never changed once made."""

    priors: LinkPriors = USUAL_PRIORS
    places: Mapping[int, Place] = field(default_factory=dict)
    """By number of the machine."""

    def of(self, source: int, target: int) -> LinkEstimate:
        """Of one direction between two numbers of machines, with hope."""
        return hoped(self.believed(source, target), HOPE)

    def believed(self, source: int, target: int) -> LinkEstimate:
        """The same without."""
        if source == target:
            return estimate_of(self.priors.at(0))
        one, other = self.places.get(source, ()), self.places.get(target, ())
        return estimate_of(self.priors.at(shared_level(one, other)))


def hoped(estimate: LinkEstimate, hope: float) -> LinkEstimate:
    """The same link, were it so many times as fast."""
    a, b, c, d = estimate.bytes_per_ms
    return replace(estimate, floor_ms=estimate.floor_ms / hope, bytes_per_ms=(a * hope, b * hope, c * hope, d * hope))


@cache
def estimate_of(link: Link) -> LinkEstimate:
    """A link's nominal times, as an estimate that nothing was seen of."""
    return LinkEstimate(link.floor_ms, (link.bytes_per_ms,) * len(PRIOR.bytes_per_ms), PRIOR.spread)  # type: ignore[arg-type]
