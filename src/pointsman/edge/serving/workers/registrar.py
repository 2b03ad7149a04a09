"""Registrar: engines that come and go over the admin API, and drains by hand, the same at all front ends of a fleet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role, WorkerSpec, engine_of
from pointsman.edge.cluster.discovery.discovery import DiscoveryState, DiscoveryStatus, ReadRecord
from pointsman.edge.cluster.discovery.record import RegisteredRecord, record_of_json
from pointsman.edge.cluster.discovery.registrations import (
    DrainOrder,
    Registration,
    Registrations,
    RoleOrder,
    WorkersMessage,
)
from pointsman.edge.cluster.members import WorkerSource, checked, same_url
from pointsman.edge.cluster.membership import API, Member, Membership
from pointsman.edge.cluster.replicas.bus import Bus, ReplicaId
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.drains import Drains, UnknownEngineError
from pointsman.edge.serving.workers.roles import Roles, TakenError

_log = logging.getLogger("pointsman.serving")

TOPIC = "workers"
REACH_S = 0.5
"""What other front ends get to answer."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Front ends that heard of a change and did it."""

    reached: int
    """This one included."""
    missing: tuple[ReplicaId, ...] = ()
    """Those that did not answer in time; they will hear of it when they can be reached again."""


@dataclass(frozen=True, slots=True)
class Posted:
    """What became of a registration."""

    source: WorkerSource
    origin: str
    """The place whose word counts: one that another place named before is still described by that one."""
    is_new: bool
    reach: Reach


class Registrar:
    """What was registered here or at another front end.

    Args:
        read: the source that a record stands for; raises ConfigError.
        answers: whether an engine of that name answers probes.
        now_ms: only grows.
        wall_ms: the time of day, by which the later of two words is known.
    """

    def __init__(
        self,
        membership: Membership,
        drains: Drains,
        bus: Bus,
        read: ReadRecord,
        answers: Callable[[str], bool],
        now_ms: Clock,
        wall_ms: Clock,
        roles: Roles | None = None,
    ) -> None:
        self._roles = roles
        self._answers = answers
        self._membership = membership
        self._drains = drains
        self._bus = bus
        self._read = read
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._began_ms = now_ms()
        self._book = Registrations()
        self._sources: dict[str, WorkerSource] = {}
        """Of living registrations, and of deleted ones that still drain."""
        self._leaving: set[str] = set()
        self._undone: set[str] = set()
        """Engines that shall drain and are not known here yet."""
        self._silent: set[str] = set()
        """Engines that were not registered again, and answer."""
        self._refused = 0
        self._peers: set[ReplicaId] = set()
        self._number = 0
        self._waiting: dict[int, tuple[set[ReplicaId], asyncio.Event]] = {}
        bus.subscribe(TOPIC, self._heard, self._gone, self._whole)

    @property
    def status(self) -> DiscoveryStatus:
        """As a place where engines are found."""
        return DiscoveryStatus(
            API,
            "POST /v1/workers",
            DiscoveryState.CONNECTED,
            "",
            self._began_ms,
            len(self._sources),
            len(self._leaving),
            ignored_total=(("malformed", self._refused),) if self._refused else (),
        )

    # ---- what is asked for here

    async def post(self, body: bytes) -> Posted:
        """Register an engine, or say something else of it. Raises ConfigError that names the key, and TakenError."""
        record = record_of_json(body, "body", RegisteredRecord)
        (source,) = checked([self._read(record)])
        displaced = self._displaced_by(source)
        member = self._taken(source)
        if source.name in self._leaving:
            _log.warning(
                "%s: was deleted and is registered again: stop or drain an engine that registers itself, instead",
                source.name,
            )
        registration = Registration(
            source.name,
            self._book.next_stamp_ms(source.name, self._wall_ms()),
            self._bus.replica,
            body.decode(),
            None if record.ttl is None else record.ttl.s,
        )
        if not self._book.merge(registration, self._now_ms()):
            raise TakenError("too many names were registered within an hour; let engines keep theirs when they restart")
        self._register(source)
        await self._membership.settled()
        trouble = self._membership.unwatched(source.name)
        if trouble is not None:
            self._drop(source.name)
            self._book.merge(self._deletion(source.name), self._now_ms())
            raise ConfigError(trouble)
        origin = API if member is None else member.origin
        return Posted(source, origin, member is None, await self._tell(WorkersMessage([*displaced, registration])))

    async def delete(self, name: str, *, now: bool, url: str | None = None) -> Reach:
        """Drain an engine, then forget it; `now`: forget it at once, what runs there goes on.

        Raises UnknownEngineError, and TakenError when another place names it, or it is not the one at `url`.
        """
        member = self._membership.member(name)
        if member is None:
            known = ", ".join(sorted(one.source.name for one in self._membership.members())) or "none"
            raise UnknownEngineError(f"no engine is called {name!r}; there are {known}")
        if url is not None and same_url(member.source.url) != same_url(url):
            raise TakenError(f"{name} is {member.source.url}, not {url}")
        if name not in self._sources:
            raise TakenError(
                f"{name} is named by the {member.origin}: remove it there, or drain it: POST /v1/workers/{name}/drain"
            )
        deletion = self._deletion(name, drain=not now)
        self._book.merge(deletion, self._now_ms())
        self._unregister(deletion)
        await self._membership.settled()
        return await self._tell(WorkersMessage([deletion]))

    async def drain(self, name: str, reason: str, grace_s: float | None) -> Reach:
        """No new work for an engine, at any front end. Raises UnknownEngineError."""
        self._drains.begin(name, reason, grace_s)
        return await self._order(name, reason, grace_s)

    async def resume(self, name: str) -> Reach:
        """It gets work again. Raises UnknownEngineError, and TakenError for one that is about to be forgotten."""
        if name in self._leaving:
            raise TakenError(f"{name} was deleted and drains for that; post it again to keep it")
        self._drains.resume(name)
        return await self._order(name, None, None)

    async def change_role(self, name: str, role: Role) -> Reach:
        """It computes other stages from now on, at any front end; what is there ends as it began.

        Raises UnknownEngineError, and TakenError where that can't be.
        """
        if self._roles is None:
            raise TakenError("roles can't be changed here")
        was = self._roles.told(name)
        self._roles.check(name, role)
        stamp_ms = self._book.next_stamp_ms(name, self._wall_ms())
        order = RoleOrder(name, stamp_ms, self._bus.replica, was.value, None if role is was else role.value)
        self._book.merge_role(order)
        self._roles.do(order)
        return await self._tell(WorkersMessage(roles=[order]))

    def role_of(self, spec: WorkerSpec) -> RoleOrder | None:
        """The order that holds for a worker as it is described now; None: there is none, or none any more."""
        order = self._book.role(engine_of(spec.id))
        if order is None or order.role is None:
            return None
        if order.was == spec.role.value:
            return order
        self._book.role_ended(order.name)
        _log.info("%s: is described as %s now, so the order to be %s is over", order.name, spec.role, order.role)
        return None

    def look(self) -> None:
        """Every second or so: what has not been said again in time leaves."""
        now_ms = self._now_ms()
        for name in self._book.expired(now_ms, self._stays):
            _log.warning("%s: was not registered again in time and does not answer: it leaves", name)
            self._silent.discard(name)
            self._drop(name)
        for order in self._book.drains():
            if order.name in self._undone:
                self._do(order)
            elif order.reason is not None and self._drains.of(order.name) is None:
                self._book.drain_ended(order.name)
        self._book.forget(now_ms, self._wall_ms(), [one.source.name for one in self._membership.members()])

    # ---- what is done

    def _stays(self, name: str) -> bool:
        """A registration is over, but its engine may live: who told us of it may be what is gone."""
        source = self._sources.get(name)
        stays = source is not None and source.draining is None and self._answers(name)
        if stays and name not in self._silent:
            self._silent.add(name)
            _log.warning("%s: was not registered again in time, and stays while it answers", name)
        return stays

    def _deletion(self, name: str, *, drain: bool = False) -> Registration:
        stamp_ms = self._book.next_stamp_ms(name, self._wall_ms())
        return Registration(name, stamp_ms, self._bus.replica, drain=drain)

    def _taken(self, source: WorkerSource) -> Member | None:
        """The engine itself, if there is one already. Raises TakenError when it is another one."""
        known = self._membership.member(source.name)
        if known is not None and same_url(known.source.url) == same_url(source.url):
            return known  # as most are: engines register again and again
        if known is not None:
            raise TakenError(
                f"{source.name} is {known.source.url} already, named by the {known.origin}; choose another name, or "
                "delete that one first"
            )
        for member in self._membership.members():
            if same_url(member.source.url) == same_url(source.url):
                raise TakenError(f"{source.url} is {member.source.name} already, named by the {member.origin}")
        return None

    def _displaced_by(self, source: WorkerSource) -> list[Registration]:
        """An engine that was started again under another name answers for what it was called before: that is over."""
        url = same_url(source.url)
        deletions = [
            self._deletion(name)
            for name in self._silent
            if name != source.name and same_url(self._sources[name].url) == url
        ]
        for deletion in deletions:
            self._book.merge(deletion, self._now_ms())
            self._unregister(deletion)
        return deletions

    def _register(self, source: WorkerSource) -> None:
        self._silent.discard(source.name)
        if source.name in self._leaving:
            self._leaving.discard(source.name)
            self._drains.resume(source.name)
        elif self._sources.get(source.name) == source:
            return
        self._sources[source.name] = source
        self._offer()

    def _unregister(self, deletion: Registration) -> None:
        name = deletion.name
        if name not in self._sources:
            return
        try:
            if deletion.drain:
                self._leaving.add(name)
                self._drains.begin(name, "deleted over the admin API", then=lambda: self._left(name))
                return
        except UnknownEngineError:
            pass  # it was refused here, so nothing runs there
        self._drop(name)

    def _left(self, name: str) -> None:
        if name in self._leaving:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._leaving.discard(name)
        self._silent.discard(name)
        if name in self._undone:
            self._undone.discard(name)
            self._book.drain_ended(name)
        if self._sources.pop(name, None) is not None:
            self._offer()

    def _offer(self) -> None:
        self._membership.offer(API, [self._sources[name] for name in sorted(self._sources)])

    async def _order(self, name: str, reason: str | None, grace_s: float | None) -> Reach:
        stamp_ms = self._book.next_stamp_ms(name, self._wall_ms())
        order = DrainOrder(name, stamp_ms, self._bus.replica, reason, grace_s)
        self._book.merge_drain(order)
        self._undone.discard(name)
        return await self._tell(WorkersMessage(drains=[order]))

    def _do(self, order: DrainOrder) -> None:
        self._undone.discard(order.name)
        try:
            if order.reason is not None:
                self._drains.begin(order.name, order.reason, order.grace_s)
            elif order.name not in self._leaving:
                self._drains.resume(order.name)
        except UnknownEngineError:
            if order.reason is not None:
                self._undone.add(order.name)

    # ---- between front ends

    async def _tell(self, message: WorkersMessage) -> Reach:
        self._number += 1
        message.number = self._number
        waiting, answered = set(self._peers), asyncio.Event()
        self._waiting[self._number] = (waiting, answered)
        try:
            self._bus.publish(TOPIC, msgspec.json.encode(message))
            asked = len(waiting)
            if asked:
                try:
                    async with asyncio.timeout(REACH_S):
                        await answered.wait()
                except TimeoutError:
                    _log.warning("%d of %d other front ends did not answer: %s", len(waiting), asked, sorted(waiting))
            return Reach(1 + asked - len(waiting), tuple(sorted(waiting)))
        finally:
            del self._waiting[message.number]

    def _heard(self, replica: ReplicaId, payload: bytes) -> None:
        self._peers.add(replica)
        try:
            message = msgspec.json.decode(payload, type=WorkersMessage)
        except msgspec.MsgspecError as error:
            _log.error("front end %s says what can't be read of engines; is it of another version? %s", replica, error)
            return
        for registration in message.registrations:
            if self._book.merge(registration, self._now_ms()):
                self._follow(registration)
        for order in message.drains:
            if self._book.merge_drain(order):
                self._do(order)
        for role in message.roles:
            if self._book.merge_role(role) and self._roles is not None:
                self._roles.do(role)
        if message.number is not None:
            self._bus.publish(TOPIC, msgspec.json.encode(WorkersMessage(done=(replica, message.number))))
        if message.done is not None and message.done[0] == self._bus.replica:
            self._answered(replica, message.done[1])

    def _follow(self, registration: Registration) -> None:
        if registration.record is None:
            self._unregister(registration)
            return
        try:
            record = record_of_json(registration.record.encode(), f"engine {registration.name}", RegisteredRecord)
            (source,) = checked([self._read(record)])
        except ConfigError as error:
            self._refused += 1
            _log.error("an engine that front end %s took can't be used here: %s", registration.replica, error)
            return
        self._register(source)

    def _answered(self, replica: ReplicaId, number: int) -> None:
        if number in self._waiting:
            waiting, answered = self._waiting[number]
            waiting.discard(replica)
            if not waiting:
                answered.set()

    def _gone(self, replica: ReplicaId) -> None:
        """What it registered stays: that is no property of the front end."""
        self._peers.discard(replica)
        for number in tuple(self._waiting):
            self._answered(replica, number)

    def _whole(self) -> bytes:
        registrations, drains = self._book.everything()
        return msgspec.json.encode(WorkersMessage(registrations, drains, list(self._book.roles())))
