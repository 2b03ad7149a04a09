"""Section `decision-log`: what is kept of decisions, in memory and on disk."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.portion import Portion
from pointsman.edge.configuration.share import Share
from pointsman.edge.configuration.size import Size


class DecisionLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided and what came of it, never what was said."""

    ring: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="Decisions kept in memory, beside those whose requests run; 0: none."),
    ] = 4096
    ring_size: Annotated[Size, Meta(description="What they may take; older ones make room.")] = Size(32 * 2**20)

    path: Annotated[
        str | None,
        Meta(
            min_length=1,
            description="File to append to; absent: no log. `serve --processes` writes one a front end: "
            "`decisions.1.jsonl` and so on.",
        ),
    ] = None
    max_size: Annotated[
        Size, Meta(description="Size at which a new file is begun; the old one gets `.1` after it.")
    ] = Size(256 * 2**20)
    keep: Annotated[int, Meta(ge=0, le=1000, description="Old files that are kept.")] = 4
    sample: Annotated[
        Share,
        Meta(
            description="Part of the requests that are written, by a hash of their ids; those that failed or missed a "
            "promised time are always written."
        ),
    ] = Share(1.0)
    state: Annotated[
        Portion,
        Meta(
            description="Lines that carry the state of the fleet, on which `explain --what-if` decides: about "
            "1.1 kB for 8 workers, 6 kB for 256."
        ),
    ] = Portion(0.0)
