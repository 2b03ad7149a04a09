"""Joiner: one way to tell front ends of an engine."""

from __future__ import annotations

import logging
from typing import Protocol

_log = logging.getLogger("pointsman.cluster")


class Joiner(Protocol):
    """Keeps one record where front ends find it."""

    async def run(self) -> None:
        """Registers, and again whenever that is lost, until cancelled. Never raises for trouble outside."""
        ...

    async def say(self, record: bytes) -> None:
        """Another record from now on, told at once if that can be done."""
        ...

    async def leave(self) -> None:
        """Take the record away, if that can be done."""
        ...


class Trouble:
    """What keeps an engine from being registered somewhere, said once as long as it is the same."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._reason: str | None = ""

    def is_(self, reason: str) -> None:
        """It is not registered there."""
        if reason != self._reason:
            _log.warning("not registered at %s: %s", self._where, reason)
            self._reason = reason

    def over(self) -> None:
        """It is."""
        if self._reason is not None:
            _log.info("registered at %s", self._where)
            self._reason = None
