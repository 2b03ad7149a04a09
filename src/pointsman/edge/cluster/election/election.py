"""Election: one of several candidates leads; its back ends are this process and etcd.

A leader holds its office for a time that it renews. When it can't renew it, it has stepped down before anybody else can
be elected: what it may do is a question of its own clock, not of whether it heard something. A process that stood still
in the middle of a step may still end that step too late, so whatever it writes should carry the token, which is larger
with each leader: whoever keeps the highest one seen can refuse an older one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

Lost = Callable[[str], None]
"""Told why, once."""


@dataclass(frozen=True, slots=True)
class ElectionStatus:
    """For people."""

    role: str
    candidate: str
    """This one."""
    leader: str | None
    """As far as known."""
    token: int | None
    """Of this one, while it leads."""
    trouble: str | None = None
    """Why nobody can be elected now."""

    @property
    def leads(self) -> bool:
        """This one is the leader."""
        return self.token is not None


class Leadership:
    """One term of a leader.

    Args:
        token: larger than that of every leader before.
        holds_until_s: by `now_s`; None: until it is ended.
    """

    def __init__(self, token: int, now_s: Callable[[], float], holds_until_s: float | None = None) -> None:
        self.token = token
        self._now_s = now_s
        self._holds_until_s = holds_until_s
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lost: list[Lost] = []

    @property
    def holds(self) -> bool:
        """It may act as the leader at this moment. Ask before each step; it is a look at the clock."""
        return not self._ended.done() and (self._holds_until_s is None or self._now_s() < self._holds_until_s)

    def on_lost(self, lost: Lost) -> None:
        """Be told when it ends, however; at once if it has ended."""
        if self._ended.done():
            lost(self._ended.result())
        else:
            self._lost.append(lost)

    async def ended(self) -> str:
        """Wait for its end; why it ended."""
        return await asyncio.shield(self._ended)

    # ---- for back ends

    def renewed(self, holds_until_s: float) -> None:
        """It goes on until then."""
        self._holds_until_s = holds_until_s

    def end(self, reason: str) -> None:
        """It is over. Only the first call counts."""
        if self._ended.done():
            return
        self._ended.set_result(reason)
        for lost in self._lost:
            lost(reason)


class Election(Protocol):
    """Of one candidate for one role."""

    async def campaign(self) -> Leadership:
        """Wait until this candidate is elected. Cancel it to give up."""
        ...

    async def resign(self) -> None:
        """End the term, if there is one, so that another can be elected at once."""
        ...

    @property
    def status(self) -> ElectionStatus:
        """For people."""
        ...


async def while_leading(election: Election, work: Callable[[Leadership], Awaitable[None]]) -> None:
    """Do the work of a role whenever this candidate leads, until cancelled; work that ends by itself ends this.

    Work is cancelled as soon as the term is over. Raises what the work raises; the office is given up.
    """
    while True:
        try:
            term = await election.campaign()
        except asyncio.CancelledError:
            await election.resign()  # it may have been elected and not have heard of it
            raise
        doing = asyncio.ensure_future(work(term))
        ended = asyncio.ensure_future(term.ended())
        try:
            await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return await doing
        finally:
            ended.cancel()
            if not doing.done():
                doing.cancel()
                with suppress(asyncio.CancelledError):
                    await doing
            await election.resign()
