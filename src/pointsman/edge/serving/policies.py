"""The policy in force, and policies from other packages."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points

from pointsman.core.model.errors import PolicyError
from pointsman.core.policies.policy import Policy
from pointsman.core.policies.registry import PolicyRegistry

ENTRY_POINT_GROUP = "pointsman.policies"

_log = logging.getLogger("pointsman.serving")


def load_registry() -> PolicyRegistry:
    """All built-in policies and those that installed packages offer. Raises PolicyError when one can't be loaded."""
    registry = PolicyRegistry()
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        registry.add(_load(entry))
    return registry


def _load(entry: EntryPoint) -> Policy:
    try:
        made = entry.load()
        policy: Policy = made() if isinstance(made, type) else made
    except Exception as error:
        raise PolicyError(
            f"policy {entry.name!r} ({entry.value}) can't be loaded: {error!r}; mend or uninstall its package"
        ) from error
    return policy


class ActivePolicy:
    """Which policy decides now. Switching takes effect with the next decision; no request waits for it."""

    def __init__(self, registry: PolicyRegistry, name: str) -> None:
        self._registry = registry
        self.configured_name = name
        self.policy = registry.get(name)

    def names(self) -> list[str]:
        """Names that `switch` takes."""
        return self._registry.names()

    def switch(self, name: str) -> None:
        """Raises PolicyError for an unknown name; the old policy then stays."""
        policy = self._registry.get(name)
        _log.info("policy: %s -> %s", self.configured_name, name)
        self.policy, self.configured_name = policy, name
