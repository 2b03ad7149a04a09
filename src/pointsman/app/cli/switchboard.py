"""How the front ends of `serve --processes N` share the policy: a switch at one reaches all through the supervisor."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import msgspec

from pointsman.core.model.errors import PolicyError
from pointsman.edge.serving.policies import ActivePolicy

_log = logging.getLogger("pointsman.cli")

_POLL_S = 0.05
_MOST_BYTES = 4096


class Message(msgspec.Struct, omit_defaults=True):
    """What goes over a line. From a front end: where its admin port is, or that it was switched. To it: switch."""

    admin_url: str | None = None
    policy: str | None = None


class Switchboard:
    """The supervisor's end of all lines. Remembers the policy in force, for front ends that are started again."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.admin_urls: dict[int, str] = {}
        """Of the front ends that listen, by their numbers."""
        self._lines: dict[int, socket.socket] = {}
        self._owed: set[int] = set()
        """Front ends that have not been told of the policy in force."""

    def connect(self, index: int) -> socket.socket:
        """A new line to front end `index`; the end that it shall have. It must be started with the policy in force."""
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
        self._owed.discard(index)

    def exchange(self) -> None:
        """Hear and tell what is new. Never waits. The switch that is heard last is in force."""
        for index, line in self._lines.items():
            for message in _received(line):
                self._hear(index, message)
        for index in tuple(self._owed):
            if _sent(self._lines[index], Message(policy=self.policy)):
                self._owed.discard(index)

    def close(self) -> None:
        """Hang up all."""
        for index in tuple(self._lines):
            self.hang_up(index)

    def _hear(self, index: int, message: Message) -> None:
        if message.admin_url is not None:
            self.admin_urls[index] = message.admin_url
        if message.policy is not None and message.policy != self.policy:
            self.policy = message.policy
            # The one that told it is told too: another switch may have reached it in between.
            self._owed.update(self._lines)


async def follow(line: socket.socket, admin_url: str, policy: ActivePolicy) -> None:
    """A front end's end of its line: tells of a switch made here, makes those made elsewhere. Until cancelled."""
    seen = policy.configured_name
    announced = False
    while True:
        announced = announced or _sent(line, Message(admin_url=admin_url))
        if policy.configured_name != seen and _sent(line, Message(policy=policy.configured_name)):
            seen = policy.configured_name
        for message in _received(line):
            _switch(policy, message.policy)
            seen = policy.configured_name
        await asyncio.sleep(_POLL_S)


def _switch(policy: ActivePolicy, name: str | None) -> None:
    if name is None or name == policy.configured_name:
        return
    try:
        policy.switch(name)
    except PolicyError as error:
        _log.error(
            "another front end was switched to %s, this one stays with %s: %s", name, policy.configured_name, error
        )


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
