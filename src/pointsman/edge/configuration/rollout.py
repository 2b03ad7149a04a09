"""Section `routing.rollout`: a new policy for a share of the traffic."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.core.trials.arms import By
from pointsman.edge.configuration.share import Share


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A new policy for a share of the traffic, compared with the policy of all others."""

    policy: Annotated[str, Meta(min_length=1, description="The new policy.")]
    share: Annotated[Share, Meta(description="How much of the traffic it decides.")] = Share(0.05)
    by: Annotated[
        By | None,
        Meta(
            description="What goes to one policy as a whole; absent: sessions where `routing.route_key` is set, else "
            "requests."
        ),
    ] = None
    auto_rollback: Annotated[
        bool, Meta(description="Go back to the old policy for all as soon as the new one is worse for certain.")
    ] = True
    worse_by: Annotated[
        Share, Meta(description="How much longer times may be with the new policy before that counts as worse.")
    ] = Share(0.05)
