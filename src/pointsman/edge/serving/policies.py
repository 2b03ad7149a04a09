"""Who decides, and policies from other packages."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

import msgspec

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.contract import decided, failure
from pointsman.core.policies.policy import Policy, Timing
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.policies.session import Session
from pointsman.core.trials.arms import Arm, By
from pointsman.edge.serving.rollout import LiveRollout, Ticket
from pointsman.edge.serving.rollout_order import Orders, RolloutOrder, in_force
from pointsman.edge.serving.shadows import Shadows

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


class Chosen(NamedTuple):
    """A decision, and where its request belongs."""

    decision: Decision
    ticket: Ticket | None
    """None: no rollout runs, or its policy could not decide and the base policy did."""


class ActivePolicy:
    """Who decides now: a policy, for a share of the requests maybe another one, and shadows that only say what they
    would do. A change takes effect with the next decision; no request waits for it.

    Args:
        rollout: as it shall be, or as it ended before a restart.
        shadow: names of policies.
        watchers: front ends that each judge the rollout by their own requests.

    Raises PolicyError for a policy that is unknown or can't be used here.
    """

    def __init__(
        self,
        registry: PolicyRegistry,
        name: str,
        *,
        has_route_key: bool = False,
        rollout: RolloutOrder | None = None,
        shadow: Sequence[str] = (),
        watchers: int = 1,
    ) -> None:
        self._registry = registry
        self._has_route_key = has_route_key
        self._watchers = watchers
        self._failures_logged: set[tuple[str, type]] = set()
        self.policy = self._usable(name, "routing.policy: ")
        self.configured_name = name
        self.rollout: LiveRollout | None = None
        if rollout is not None:
            self.rollout = self._made(rollout, "routing.rollout: ")
        self.shadows = self.make_shadows(shadow)

    def names(self) -> list[str]:
        """Names that `switch` takes."""
        return self._registry.names()

    def in_force(self) -> str:
        """The policy that decides now: `auto` leaves it to another one."""
        return in_force(self.policy.name)

    # ---- changes

    def switch(self, name: str) -> None:
        """Change the base policy. Raises PolicyError for a name that is unknown or can't be used here; nothing changes.

        A rollout of that policy is complete; one of another policy goes on against the new base, compared from anew.
        """
        policy = self._usable(name)
        if policy is self.policy:
            return
        _log.info("policy: %s -> %s", self.configured_name, name)
        self.policy, self.configured_name = policy, name
        self.shadows.begin_anew()
        rollout = self.rollout
        if rollout is None:
            return
        if self._already(rollout.order.policy):
            _log.info("rollout of %s: it decides all requests now", name)
            self.rollout = None
        else:
            self.rollout = self._made(rollout.order)

    def roll_out(self, order: RolloutOrder) -> None:
        """Begin a rollout, or change the one that runs. Raises PolicyError for one that can't be; nothing changes."""
        self.rollout = self._made(order)
        if order.ended is None:
            _log.info(
                "rollout: %s decides %.4g %% of all %ss, %s the rest",
                order.policy,
                100 * order.share,
                order.by,
                self.configured_name,
            )

    def orders(self) -> Orders:
        """All of it that other front ends have to agree with."""
        return Orders(self.configured_name, None if self.rollout is None else self.rollout.order)

    def obey(self, orders: Orders) -> None:
        """Do as another front end was told. Raises PolicyError for what can't be done here."""
        self.switch(orders.policy)
        wanted, mine = orders.rollout, self.rollout
        if wanted is None:
            self.rollout = None
        elif mine is None or wanted != _ended(mine.order, wanted) or (wanted.ended is None and not mine.running):
            self.roll_out(wanted)
        elif wanted.ended is not None:
            # The same one, over: what was seen here until then stays to be looked at.
            mine.end(f"at another front end: {wanted.ended}")
            mine.order = wanted

    def check(self, orders: Orders) -> None:
        """Raises PolicyError for orders that `obey` could not carry out."""
        ActivePolicy(
            self._registry,
            orders.policy,
            has_route_key=self._has_route_key,
            rollout=orders.rollout,
            watchers=self._watchers,
        )

    def make_shadows(self, names: Sequence[str]) -> Shadows:
        """Shadows of these policies, to be put in `shadows`. Raises PolicyError."""
        return Shadows([self._usable(one, "routing.shadow: ") for one in names])

    def _made(self, order: RolloutOrder, where: str = "") -> LiveRollout:
        if order.by is By.SESSION and not self._has_route_key:
            raise PolicyError(f"{where}a rollout by session needs routing.route_key in the configuration")
        if self._already(order.policy):
            raise PolicyError(
                f"{where}the policy {order.policy} decides already (policy {self.configured_name}); name another one"
            )
        return LiveRollout(self.policy, self._usable(order.policy, where), order, watchers=self._watchers)

    def _already(self, name: str) -> bool:
        """Whether it is the base policy, or decides as that does: `auto` leaves decisions to another one."""
        return name == self.configured_name or in_force(name) == self.in_force()

    def _usable(self, name: str, where: str = "") -> Policy:
        try:
            policy = self._registry.get(name)
        except PolicyError as error:
            raise PolicyError(f"{where}{error}") from None
        if name == Session.name and not self._has_route_key:
            raise PolicyError(f"{where}the policy {name} needs routing.route_key in the configuration")
        return policy

    # ---- deciding

    def decide(
        self, request: Request, view: FleetView, timing: Timing, now_ms: float, chance: Callable[[], random.Random]
    ) -> Chosen:
        """The decision of the policy that the request belongs to.

        Where the policy of a rollout raises, or chooses a worker that may not take the request, the base policy
        decides instead. Raises PolicyError when that one does so.

        Args:
            chance: makes the random numbers of this decision, the same at each call.
        """
        ticket = None if self.rollout is None else self.rollout.ticket(request)
        if ticket is not None and ticket.place.arm is Arm.TRIAL:
            trial = ticket.rollout.trial
            try:
                return Chosen(decided(trial, request, view, timing, now_ms, chance()), ticket)
            except Exception as error:
                self._log_failure(trial, request.id, error)
                ticket.rollout.failed(error)
                ticket = None
        policy = self.policy
        try:
            return Chosen(decided(policy, request, view, timing, now_ms, chance()), ticket)
        except Exception as error:
            self._log_failure(policy, request.id, error)
            raise PolicyError(f"the policy {policy.name} failed to decide; the log says why") from error

    def look(self) -> None:
        """Roll back a rollout whose policy turned out to be worse. Call it now and then."""
        if self.rollout is not None:
            self.rollout.look()

    def _log_failure(self, policy: Policy, request_id: str, error: Exception) -> None:
        """With its traceback the first time, in one line from then on."""
        first = (policy.name, type(error)) not in self._failures_logged
        self._failures_logged.add((policy.name, type(error)))
        _log.error("%s", failure(policy, request_id, error), exc_info=error if first else None)


def _ended(order: RolloutOrder, like: RolloutOrder) -> RolloutOrder:
    return msgspec.structs.replace(order, ended=like.ended, ended_s=like.ended_s)
