"""Keeping a lease: it is renewed three times in its time, and its keeper knows when it must count as over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from pointsman.edge.cluster.etcd.client import Lease
from pointsman.edge.cluster.etcd.errors import EtcdUnreachableError, LeaseLostError

Sleep = Callable[[float], Awaitable[None]]
_RENEWALS = 3
"""In its time, so that one may be lost."""
_TRIES = 10
"""In its time, while etcd does not answer."""


class KeepsAlive(Protocol):
    """The part of EtcdClient that is needed here."""

    async def keep_alive(self, lease: int) -> int:
        """As EtcdClient's."""
        ...


async def keep_lease(client: KeepsAlive, lease: Lease, now_s: Callable[[], float], sleep: Sleep = asyncio.sleep) -> str:
    """Renews a lease until it is lost; then returns why. Raises EtcdRefusedError when etcd won't renew it.

    It also counts as lost when its time is over by this clock, whoever stopped: this process, or etcd. Count from when
    the lease was asked for, at the latest from the call of this.
    """
    over_at_s = now_s() + lease.ttl_s
    pause_s = lease.ttl_s / _RENEWALS
    while True:
        await sleep(pause_s)
        asked_at_s = now_s()
        try:
            over_at_s = asked_at_s + await client.keep_alive(lease.id)
        except LeaseLostError as error:
            return str(error)
        except EtcdUnreachableError as error:
            if now_s() >= over_at_s:
                return f"its {lease.ttl_s} s are over, and {error}"
            pause_s = min(lease.ttl_s / _TRIES, over_at_s - now_s())
        else:
            pause_s = lease.ttl_s / _RENEWALS
