"""The policy in force, and policies from other packages."""

from __future__ import annotations

import logging
import random
from importlib.metadata import EntryPoint, entry_points

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.auto import Auto
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.policy import Policy, Timing
from pointsman.core.policies.prefix import Prefix
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.policies.session import Session

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
    name = getattr(policy, "name", None)
    if name != entry.name:
        raise PolicyError(
            f"the entry point {entry.name!r} ({entry.value}) names a policy called {name!r}; use one name"
        )
    return policy


class ActivePolicy:
    """Which policy decides now. Switching takes effect with the next decision; no request waits for it."""

    def __init__(self, registry: PolicyRegistry, name: str, *, has_route_key: bool = False) -> None:
        self._registry = registry
        self._has_route_key = has_route_key
        self._failures_logged: set[tuple[str, type]] = set()
        self.policy = self._usable(name)
        self.configured_name = name

    def names(self) -> list[str]:
        """Names that `switch` takes."""
        return self._registry.names()

    def in_force(self, any_exact: bool) -> str:
        """The policy that decides for most requests now: `auto` leaves it to another one."""
        if self.policy.name != Auto.name:
            return self.policy.name
        return Kv.name if any_exact else Prefix.name

    def switch(self, name: str) -> None:
        """Raises PolicyError for a name that is unknown or can't be used here; the old policy then stays."""
        policy = self._usable(name)
        _log.info("policy: %s -> %s", self.configured_name, name)
        self.policy, self.configured_name = policy, name

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The policy's decision. Raises PolicyError when it raises, or chose a worker that may not take the request."""
        policy = self.policy
        try:
            decision = policy.decide(request, view, timing, now_ms, rng)
            _check(decision.worker, view)
        except Exception as error:
            self._log_failure(policy.name, request.id, error)
            raise PolicyError(f"the policy {policy.name} failed to decide; the log says why") from error
        return decision

    def _usable(self, name: str) -> Policy:
        policy = self._registry.get(name)
        if name == Session.name and not self._has_route_key:
            raise PolicyError(f"the policy {name} needs routing.route_key in the configuration")
        return policy

    def _log_failure(self, policy: str, request_id: str, error: Exception) -> None:
        """With its traceback the first time, in one line from then on."""
        first = (policy, type(error)) not in self._failures_logged
        self._failures_logged.add((policy, type(error)))
        _log.error("policy %s failed on request %s: %r", policy, request_id, error, exc_info=error if first else None)


def _check(worker: WorkerId | None, view: FleetView) -> None:
    if worker is None:
        return
    if worker not in view.workers:
        raise PolicyError(f"it chose {worker}, which is no candidate")
    reason = int(view.table[Column.EXCLUSION, view.workers.index(worker)])
    if reason:
        raise PolicyError(f"it chose {worker}, which is excluded: {Exclusion(reason).text}")
