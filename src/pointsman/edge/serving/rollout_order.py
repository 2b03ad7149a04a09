"""What is asked of front ends: which policy decides, and which one for a share of the traffic."""

from __future__ import annotations

import msgspec

from pointsman.core.trials.arms import By, Split


class RolloutOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rollout as it shall be, or as it ended. Shares are parts of 1."""

    policy: str
    share: float
    by: By
    worse_by: float = 0.05
    """How much longer times may be before the policy counts as worse."""
    auto_rollback: bool = True
    ended: str | None = None
    """Why it was rolled back; None: it runs."""
    ended_s: float | None = None
    """When, seconds since 1970."""

    def split(self) -> Split:
        """Who is in it. Raises PolicyError for a share that is none."""
        return Split(self.policy, self.share, self.by)


class Orders(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that several front ends have to agree on."""

    policy: str
    rollout: RolloutOrder | None = None
