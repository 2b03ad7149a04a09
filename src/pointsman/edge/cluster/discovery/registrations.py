"""Registrations: engines that were named over the admin API, and orders to them, the same in all front ends. Pure.

Each name has one registration and one order of a kind; of two the later one counts, whichever way they come. A deletion
is a registration without a record, kept so that no older word brings the engine back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

FORGET_AFTER_MS = 3_600_000.0
"""Of deletions and ended drains: who was away for longer may bring them back."""
MOST = 10_000
"""Names."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was last said of an engine."""

    name: str
    stamp_ms: float
    """Wall clock of the front end that was told."""
    replica: str
    """That front end."""
    record: str | None = None
    """JSON, as it was posted; None: deleted."""
    ttl_s: float | None = None
    """After that it counts as deleted, unless it was said again or the engine still answers."""
    drain: bool = False
    """Of a deletion: only once nothing runs there any more."""

    @property
    def order(self) -> tuple[float, str]:
        """Of two the larger one counts."""
        return (self.stamp_ms, self.replica)


class DrainOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """That an engine shall drain, or shall no more."""

    name: str
    stamp_ms: float
    replica: str
    reason: str | None = None
    """None: it gets work again."""
    grace_s: float | None = None

    @property
    def order(self) -> tuple[float, str]:
        """Of two the larger one counts."""
        return (self.stamp_ms, self.replica)


class RoleOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """That an engine shall compute other stages than those with which it was named."""

    name: str
    stamp_ms: float
    replica: str
    was: str
    """Its role as whoever named it said then: when that changes the order is over."""
    role: str | None = None
    """None: it is as it was named."""

    @property
    def order(self) -> tuple[float, str]:
        """Of two the larger one counts."""
        return (self.stamp_ms, self.replica)


class WorkersMessage(msgspec.Struct, omit_defaults=True):
    """What front ends tell each other."""

    registrations: list[Registration] = []
    drains: list[DrainOrder] = []
    roles: list[RoleOrder] = []
    number: int | None = None
    """The others answer with it once they did what it says."""
    done: tuple[str, int] | None = None
    """Such an answer: the replica that told, and its number."""


class Registrations:
    """The latest word on each name. `now_ms` is a clock that only grows."""

    def __init__(self) -> None:
        self._latest: dict[str, Registration] = {}
        self._heard_ms: dict[str, float] = {}
        self._drains: dict[str, DrainOrder] = {}
        self._roles: dict[str, RoleOrder] = {}

    def merge(self, registration: Registration, now_ms: float) -> bool:
        """Whether this is news. What is older than what is known is none."""
        known = self._latest.get(registration.name)
        if known is not None and known.order >= registration.order:
            return False
        if known is None and len(self._latest) >= MOST:
            return False
        self._latest[registration.name] = registration
        self._heard_ms[registration.name] = now_ms
        return True

    def merge_drain(self, order: DrainOrder) -> bool:
        """Whether this is news."""
        known = self._drains.get(order.name)
        if (known is not None and known.order >= order.order) or (known is None and len(self._drains) >= MOST):
            return False
        self._drains[order.name] = order
        return True

    def drain_ended(self, name: str) -> None:
        """Its engine is gone, or is another one now: the order does not hold for front ends that come later."""
        order = self._drains.get(name)
        if order is not None:
            # With the same stamp, as no other order is given: nobody who knows this one does anything.
            self._drains[name] = msgspec.structs.replace(order, reason=None, grace_s=None)

    def merge_role(self, order: RoleOrder) -> bool:
        """Whether this is news."""
        known = self._roles.get(order.name)
        if (known is not None and known.order >= order.order) or (known is None and len(self._roles) >= MOST):
            return False
        self._roles[order.name] = order
        return True

    def role_ended(self, name: str) -> None:
        """Whoever names the engine says another role by now: the order does not hold any more, anywhere."""
        order = self._roles.get(name)
        if order is not None:
            self._roles[name] = msgspec.structs.replace(order, role=None)

    def role(self, name: str) -> RoleOrder | None:
        """The latest order for an engine."""
        return self._roles.get(name)

    def roles(self) -> tuple[RoleOrder, ...]:
        """All of them."""
        return tuple(self._roles.values())

    def next_stamp_ms(self, name: str, wall_ms: float) -> float:
        """A stamp that counts above all that is known of a name, even if clocks differ."""
        entries = (self._latest.get(name), self._drains.get(name), self._roles.get(name))
        known = [entry.stamp_ms for entry in entries if entry is not None]
        return max([wall_ms, *(stamp_ms + 0.001 for stamp_ms in known)])

    def get(self, name: str) -> Registration | None:
        """The latest word on a name."""
        return self._latest.get(name)

    def living(self) -> Iterator[Registration]:
        """Those that have a record, the oldest first."""
        found = (one for one in self._latest.values() if one.record is not None)
        return iter(sorted(found, key=lambda one: one.order))

    def drains(self) -> tuple[DrainOrder, ...]:
        """All orders."""
        return tuple(self._drains.values())

    def everything(self) -> tuple[list[Registration], list[DrainOrder]]:
        """For a front end that is new."""
        return list(self._latest.values()), list(self._drains.values())

    def expired(self, now_ms: float, answers: Callable[[str], bool]) -> list[str]:
        """Names whose time is over and that do not answer. They are deletions from now on.

        One that answers gets its time again: perhaps it is the front end that it tells that is gone.
        """
        over = []
        for one in list(self._latest.values()):
            if one.record is None or one.ttl_s is None or now_ms - self._heard_ms[one.name] < 1000 * one.ttl_s:
                continue
            self._heard_ms[one.name] = now_ms
            if not answers(one.name):
                over.append(one.name)
                # With the same stamp: another front end that still hears of it is believed when it says so.
                self._latest[one.name] = msgspec.structs.replace(one, record=None, ttl_s=None)
        return over

    def forget(self, now_ms: float, wall_ms: float, engines: Iterable[str]) -> None:
        """Drop what nobody needs any more: old deletions, and drains that ended or whose engines are gone."""
        for name, heard_ms in list(self._heard_ms.items()):
            if self._latest[name].record is None and now_ms - heard_ms >= FORGET_AFTER_MS:
                del self._latest[name], self._heard_ms[name]
        there = set(engines)
        for order in list(self._drains.values()):
            if wall_ms - order.stamp_ms >= FORGET_AFTER_MS and (order.reason is None or order.name not in there):
                del self._drains[order.name]
        for role in self.roles():
            if wall_ms - role.stamp_ms >= FORGET_AFTER_MS and (role.role is None or role.name not in there):
                del self._roles[role.name]
