"""Section `links`: what is known of links between machines before KV moves over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.timing.link_priors import USUAL_PRIORS, LinkPriors
from pointsman.edge.configuration.link_speed import LinkSpeed

NODE, NETWORK = "node", "network"
"""Keys of `priors` that are no levels of a topology."""
_MACHINE_LEVELS = ("node", "host", "hostname", "machine", "server")
"""First levels of topologies that are single machines."""


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of links between machines before KV moves over them ([links.md](links.md))."""

    file: Annotated[
        str | None,
        Meta(
            min_length=1,
            description="File of measured links that `pointsman doctor links --save` wrote; read at the start, and by "
            "each reload: what it says then is told if it is something else.",
        ),
    ] = None
    priors: Annotated[
        Mapping[str, LinkSpeed],
        Meta(
            description="Links of which nothing was measured, by what two machines share: `node` (they are one), a "
            "level of `control-plane.topology_levels`, or `network` (nothing); such as `{rack: '25gbe:0.5ms'}`."
        ),
    ] = {}


def place_of(levels: Sequence[str], topology: Mapping[str, str]) -> tuple[str, ...]:
    """A worker's place, its machine first; an empty name where that is no level, and its URL's host says it."""
    if not topology:
        return ()
    place = tuple(topology.get(level, "") for level in levels)
    return place if _begins_with_machine(levels) else ("", *place)


def unknown_prior(links: Links, levels: Sequence[str]) -> str | None:
    """A key of `priors` that stands for nothing."""
    return next((key for key in links.priors if key not in (NODE, NETWORK) and key not in levels), None)


def link_priors(links: Links, levels: Sequence[str]) -> LinkPriors:
    """As the learner of links takes them; what is not said is as usual, levels by how far they are."""
    said = {key: speed.link for key, speed in links.priors.items()}
    machine = levels[0] if _begins_with_machine(levels) else NODE
    beyond = levels[1:] if _begins_with_machine(levels) else levels
    usual = USUAL_PRIORS
    return LinkPriors(
        said.get(machine, said.get(NODE, usual.node)),
        tuple(said.get(level, usual.at(number)) for number, level in enumerate(beyond, 1)) or usual.levels,
        said.get(NETWORK, usual.network),
    )


def _begins_with_machine(levels: Sequence[str]) -> bool:
    return bool(levels) and levels[0].lower() in _MACHINE_LEVELS
