"""Shutdown: how a front end ends, so that no request is lost that could be answered."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("pointsman.serving")

POLL_S = 0.02
SAID_EVERY_S = 30.0
LINGER_S = 5.0
"""What idle connections get when the front end is replaced: a request may be on its way on each of them."""
CUT_WAIT_S = 1.0
"""For requests that were cut to tell their clients so."""


class Server(Protocol):
    """What of the client port is needed here."""

    @property
    def busy(self) -> int:
        """Requests that are being answered."""

    @property
    def unread(self) -> int:
        """Answers that are complete, and that their clients have yet to read of."""

    @property
    def connections(self) -> int:
        """Open client connections."""

    def stop_listening(self) -> None:
        """Accept no more connections."""

    def begin_closing(self, linger_s: float = 0.0) -> None:
        """Each connection ends with the request that it is at, idle ones after `linger_s`."""


class Phase(enum.StrEnum):
    """Where a front end is in its life."""

    SERVING = "serving"
    LEAVING = "leaving"
    """Not ready any more, so that nobody sends new clients here, but what comes is still answered."""
    REFUSING = "refusing"
    """What comes gets 503; what runs goes on."""
    CUTTING = "cutting"
    """What still runs is ended."""


class Shutdown:
    """The end of one front end, told to stop or replaced. `cut` ends all requests, each with an error."""

    def __init__(self, server: Server, cut: Callable[[str], int]) -> None:
        self._server = server
        self._cut = cut
        self._hurry = asyncio.Event()
        self.phase = Phase.SERVING

    @property
    def ready(self) -> bool:
        """New clients may be sent here."""
        return self.phase is Phase.SERVING

    @property
    def accepting(self) -> bool:
        """New requests are answered."""
        return self.phase in (Phase.SERVING, Phase.LEAVING)

    def hurry(self) -> None:
        """Wait for nobody any more."""
        self._hurry.set()

    async def stop(self, grace_s: float, lag_s: float = 0.0) -> None:
        """Unready at once; what comes within `lag_s` is still taken; what runs gets `grace_s` in all, then it is cut.

        Until then it goes on listening: load balancers have to see `/ready` say 503.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        self._server.begin_closing(linger_s=max(grace_s, LINGER_S))
        if lag_s > 0:
            self.phase = Phase.LEAVING
            await self._until(lambda: False, loop.time() + lag_s)
        self.phase = Phase.REFUSING
        if not await self._until(lambda: not (self._server.busy or self._server.unread), deadline_s):
            await self._end_all("the front end is stopping")

    async def retire(self, grace_s: float) -> None:
        """Another one has taken over the port: take no more connections, answer what comes on those that there are.

        Each ends with its next answer, or when it was idle for a while. What still runs after `grace_s` is cut.
        """
        deadline_s = asyncio.get_running_loop().time() + grace_s
        self.phase = Phase.LEAVING
        self._server.stop_listening()
        self._server.begin_closing(LINGER_S)
        if not await self._until(lambda: not self._server.connections, deadline_s):
            await self._end_all("the front end was replaced and its grace is over")

    async def _end_all(self, reason: str) -> None:
        self.phase = Phase.CUTTING
        count = self._cut(reason)
        if count:
            _log.warning("%s: %d requests were cut", reason, count)
        await self._wait(lambda: not self._server.busy, asyncio.get_running_loop().time() + CUT_WAIT_S)

    async def _until(self, holds: Callable[[], bool], deadline_s: float) -> bool:
        """Wait for it; False: there was no time left, or somebody is in a hurry."""
        return await self._wait(holds, deadline_s, self._hurry.is_set)

    async def _wait(
        self, holds: Callable[[], bool], deadline_s: float, enough: Callable[[], bool] = lambda: False
    ) -> bool:
        loop = asyncio.get_running_loop()
        say_s = loop.time() + SAID_EVERY_S
        while not holds():
            now_s = loop.time()
            if now_s >= deadline_s or enough():
                return False
            if now_s >= say_s:
                say_s = now_s + SAID_EVERY_S
                _log.info(
                    "%s: %d requests still run, for at most %.0f s", self.phase, self._server.busy, deadline_s - now_s
                )
            await asyncio.sleep(POLL_S)
        return True
