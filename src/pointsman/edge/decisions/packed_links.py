"""Links between the machines of one view, as part of a packed state: what was measured, and what is thought else."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.link_priors import LinkPriors, PlacePriors
from pointsman.core.timing.link_times import LinkEstimate, LinkTimes
from pointsman.core.timing.links import Link

Estimate = tuple[float, tuple[float, float, float, float], float, float]
"""Floor, speeds by class of size, spread, what it rests on: as LinkEstimate."""
_Link = tuple[str, float, float]


class PackedLinks(msgspec.Struct, omit_defaults=True, array_like=True):
    """Of the machines with these numbers only."""

    pairs: list[tuple[int, int, Estimate]]
    otherwise: Estimate
    places: dict[int, tuple[str, ...]] = {}
    priors: tuple[_Link, list[_Link], _Link] | None = None
    """Of links within a machine, by level beyond it, and of the network; None: `otherwise` holds for all."""


def pack_links(links: LinkTimes, nodes: NDArray[np.int64]) -> PackedLinks:
    """Costs about a millisecond for each ten thousand pairs of machines that were measured."""
    numbers = set(nodes.tolist())
    packed = PackedLinks(
        [(*pair, _estimate(one)) for pair, one in links.pairs.items() if numbers.issuperset(pair)],
        _estimate(links.otherwise),
    )
    known = links.by_place
    if isinstance(known, PlacePriors):
        priors = known.priors
        packed.places = {number: known.places[number] for number in sorted(numbers) if number in known.places}
        packed.priors = (_link(priors.node), [_link(level) for level in priors.levels], _link(priors.network))
    return packed


def unpack_links(packed: PackedLinks) -> LinkTimes:
    """The same times for the same machines. Raises ValueError for what can be no link."""
    try:
        pairs = {(source, target): LinkEstimate(*one) for source, target, one in packed.pairs}
        known = None
        if packed.priors is not None:
            node, levels, network = packed.priors
            priors = LinkPriors(Link(*node), tuple(Link(*level) for level in levels), Link(*network))
            known = PlacePriors(priors, packed.places)
        return LinkTimes(pairs, LinkEstimate(*packed.otherwise), known)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _estimate(one: LinkEstimate) -> Estimate:
    return one.floor_ms, one.bytes_per_ms, one.spread, one.seen


def _link(link: Link) -> _Link:
    return link.name, link.gb_per_s, link.floor_ms
