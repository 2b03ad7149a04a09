"""Policies by name: the built-in ones and any that are added. Loading plug-ins is the edge's work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pointsman.core.model.errors import PolicyError
from pointsman.core.policies.auto import Auto
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.policy import Policy
from pointsman.core.policies.power_of_two import PowerOfTwo
from pointsman.core.policies.prefix import Prefix
from pointsman.core.policies.random_choice import RandomChoice
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.policies.session import Session


class PolicyRegistry:
    """Policies that can be chosen at run time."""

    def __init__(self, extra: Iterable[Policy] = ()) -> None:
        built_in: list[Policy] = [
            Auto(),
            Cost(),
            Kv(),
            Prefix(),
            LeastLoaded(),
            PowerOfTwo(),
            RoundRobin(),
            Session(),
            RandomChoice(),
        ]
        self._policies = {policy.name: policy for policy in built_in}
        for policy in extra:
            self.add(policy)

    def add(self, policy: Policy) -> None:
        """Raises PolicyError when the name is taken or the object is no policy."""
        name = getattr(policy, "name", None)
        if not isinstance(name, str) or not name or not callable(getattr(policy, "decide", None)):
            raise PolicyError(
                f"{policy!r} is no policy: it needs a name and decide(request, view, timing, now_ms, rng)"
            )
        if name in self._policies:
            raise PolicyError(f"there is a policy named {name!r} already; give yours another name")
        self._policies[name] = policy

    def names(self) -> list[str]:
        """All names that `get` takes."""
        return list(self._policies)

    def get(self, name: str) -> Policy:
        """The policy of that name. Raises PolicyError that lists the known ones."""
        policy = self._policies.get(name)
        if policy is None:
            near = difflib.get_close_matches(name, self.names(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise PolicyError(f"unknown policy {name!r}{hint} Known: {', '.join(self.names())}")
        return policy
