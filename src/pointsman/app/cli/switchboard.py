"""How the front ends of `serve --processes N` agree: a switch or rollout at one reaches all through the supervisor."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import msgspec

from pointsman.core.model.errors import PolicyError
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.rollout_order import Orders

_log = logging.getLogger("pointsman.cli")

_POLL_S = 0.05
_BEAT_S = 1.0
_MOST_BYTES = 4096


class Message(msgspec.Struct, omit_defaults=True):
    """What goes over a line. From a front end: where its admin port is, or what it was told. To it: do so too."""

    admin_url: str | None = None
    """It listens."""
    orders: Orders | None = None
    reloaded: bool = False
    """From a front end: it read the configuration again."""
    roll_over: bool = False
    """From a front end: somebody asked it that all be replaced."""
    retire: bool = False
    """To a front end: another one has its place."""
    beat: bool = False
    """From a front end: its event loop turns."""


class Switchboard:
    """The supervisor's end of all lines. Remembers what is in force, for front ends that are started again."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.admin_urls: dict[int, str] = {}
        """Of the front ends that listen, by their numbers."""
        self._lines: dict[int, socket.socket] = {}
        self.reloaded = False
        """A front end read the configuration again; whoever sees it sets it back."""
        self.roll_over = False
        """Somebody asked a front end that all be replaced; likewise."""
        self.beating: set[int] = set()
        """Front ends whose event loops turned since somebody emptied this."""
        self._owed: set[int] = set()
        """Front ends that have not been told what is in force."""
        self._retiring: set[int] = set()
        """Front ends that have not been told that they were replaced."""

    def connect(self, index: int) -> socket.socket:
        """A new line to front end `index`; the end that it shall have. It must be started with what is in force."""
        self.hang_up(index)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (ours, theirs):
            end.setblocking(False)
        self._lines[index] = ours
        return theirs

    def hang_up(self, index: int) -> None:
        """Front end `index` is gone."""
        line = self._lines.pop(index, None)
        if line is not None:
            line.close()
        self.admin_urls.pop(index, None)
        self.beating.discard(index)
        self._owed.discard(index)
        self._retiring.discard(index)

    def exchange(self) -> None:
        """Hear and tell what is new. Never waits. What is heard last is in force."""
        for index, line in self._lines.items():
            for message in _received(line):
                self._hear(index, message)
        for index in tuple(self._owed):
            if _sent(self._lines[index], Message(orders=self.orders)):
                self._owed.discard(index)
        for index in tuple(self._retiring):
            if _sent(self._lines[index], Message(retire=True)):
                self._retiring.discard(index)

    def retire(self, index: int) -> None:
        """Tell front end `index`, with the next exchange, that another one has its place."""
        self._retiring.add(index)
        self.admin_urls.pop(index, None)

    def order(self, orders: Orders) -> None:
        """These are in force from now on, for all."""
        self.orders = orders
        self._owed.update(self._lines)

    def close(self) -> None:
        """Hang up all."""
        for index in tuple(self._lines):
            self.hang_up(index)

    def _hear(self, index: int, message: Message) -> None:
        if message.beat:
            self.beating.add(index)
        if message.admin_url is not None and index not in self._retiring:
            self.admin_urls[index] = message.admin_url
        self.reloaded |= message.reloaded
        self.roll_over |= message.roll_over
        if message.orders is not None and message.orders != self.orders:
            self.orders = message.orders
            # The one that told it is told too: another change may have reached it in between.
            self._owed.update(self._lines)


class Wishes:
    """What a front end's admin port was asked for that only the supervisor can do, or has to know of."""

    def __init__(self) -> None:
        self.reloaded = False
        self.roll_over = False

    def note_reload(self) -> None:
        """It read the configuration again."""
        self.reloaded = True

    def note_roll_over(self) -> None:
        """Somebody wants all front ends to be replaced."""
        self.roll_over = True


async def beat(line: socket.socket) -> None:
    """A front end that says again and again that it does not stand still. Until cancelled."""
    while True:
        _sent(line, Message(beat=True))
        await asyncio.sleep(_BEAT_S)


async def follow(line: socket.socket, admin_url: str, policy: ActivePolicy, wishes: Wishes | None = None) -> None:
    """A front end's end of its line: tells of changes made here, makes those made elsewhere.

    Until cancelled, or told that another front end has its place.
    """
    wishes = wishes or Wishes()
    seen = policy.orders()
    announced = False
    while True:
        announced = announced or _sent(line, Message(admin_url=admin_url))
        if wishes.reloaded and _sent(line, Message(reloaded=True)):
            wishes.reloaded = False
        if wishes.roll_over and _sent(line, Message(roll_over=True)):
            wishes.roll_over = False
        now = policy.orders()
        if now != seen and _sent(line, Message(orders=now)):
            seen = now
        for message in _received(line):
            _obey(policy, message.orders)
            seen = policy.orders()
            if message.retire:
                return
        await asyncio.sleep(_POLL_S)


def _obey(policy: ActivePolicy, orders: Orders | None) -> None:
    if orders is None or orders == policy.orders():
        return
    try:
        policy.obey(orders)
    except PolicyError as error:
        _log.error(
            "another front end was switched to %s, this one stays with %s: %s",
            _text(orders),
            _text(policy.orders()),
            error,
        )


def _text(orders: Orders) -> str:
    rollout = orders.rollout
    if rollout is None or rollout.ended is not None:
        return orders.policy
    return f"{orders.policy} and {rollout.policy} for {100 * rollout.share:.4g} %"


def _received(line: socket.socket) -> Iterator[Message]:
    while True:
        try:
            raw = line.recv(_MOST_BYTES)
        except OSError:  # nothing is there, or nobody; whoever watches processes sees the latter
            return
        if not raw:
            return
        yield msgspec.json.decode(raw, type=Message)


def _sent(line: socket.socket, message: Message) -> bool:
    try:
        line.send(msgspec.json.encode(message))
    except OSError:
        return False
    return True
