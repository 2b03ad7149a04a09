"""Section `decision-log`: a line for each request that ended."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.size import Size


class DecisionLog(msgspec.Struct, frozen=True, kw_only=True):
    """A line for each request that ended: what was decided and what came of it, never what was said."""

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
