"""What is asked of front ends: which policy decides, and which one for a share of the traffic."""

from __future__ import annotations

import msgspec

from pointsman.core.policies.auto import Auto
from pointsman.core.policies.cost.cost import Cost
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

    def after(self, old: Orders, new: Orders) -> Orders:
        """These once the configuration, which asked for `old`, asks for `new`: what it did not change stays.

        A rollout that stays is complete, so gone, if its policy decides all now.
        """
        policy = self.policy if new.policy == old.policy else new.policy
        if new.rollout != old.rollout:
            return Orders(policy, new.rollout)
        complete = self.rollout is not None and in_force(self.rollout.policy) == in_force(policy)
        return Orders(policy, None if complete else self.rollout)


def in_force(policy: str) -> str:
    """The policy that decides under this name: `auto` leaves it to another one."""
    return Cost.name if policy == Auto.name else policy
