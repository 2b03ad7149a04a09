"""Leases: blocks that are held for other engines, each set for a while, and who may read them."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence

from pointsman.edge.transfer.blocks import BlockName


class Lease:
    """Some blocks, held under the name of a request. A `Grant`."""

    def __init__(self, book: Leases, name: str, tokens: int, blocks: Sequence[BlockName]) -> None:
        self.name = name
        self.tokens = tokens
        """Leading tokens of the prompt that the blocks hold."""
        self.numbers = tuple(block.number for block in blocks)
        self.token = secrets.token_urlsafe(24)
        self.ends_s = 0.0
        """On the event loop's clock."""
        self.timer: asyncio.TimerHandle | None = None
        self._book = book
        self._blocks = {block.number: block for block in blocks}

    @property
    def alive(self) -> bool:
        """Whether its blocks are held."""
        return self.timer is not None

    @property
    def blocks(self) -> Mapping[int, BlockName]:
        """By number."""
        return self._blocks

    def extend(self) -> None:
        """It begins anew."""
        self._book.extend(self)

    def release(self) -> None:
        """Its blocks are not needed any more."""
        self._book.release(self.name)


class Leases:
    """All leases of an engine. A `KvSource`. Everything happens on one event loop."""

    def __init__(self, lease_s: float, free: Callable[[str], None]) -> None:
        """`free`: gives the blocks back that are held under a name."""
        self.lease_s = lease_s
        self.expired = 0
        """Leases that ended because nobody read or extended them."""
        self._free = free
        self._loop = asyncio.get_running_loop()
        self._by_name: dict[str, Lease] = {}
        self._by_token: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def blocks(self) -> int:
        """That are held, those of several leases as often."""
        return sum(len(lease.numbers) for lease in self._by_name.values())

    def begin(self, name: str, tokens: int, blocks: Sequence[BlockName]) -> Lease:
        """Blocks are held under this name from now on."""
        lease = Lease(self, name, tokens, blocks)
        self._by_name[name] = lease
        self._by_token[lease.token] = lease
        lease.ends_s = self._loop.time() + self.lease_s
        lease.timer = self._loop.call_at(lease.ends_s, self._look, lease)
        return lease

    def of(self, name: str) -> Lease | None:
        """By name."""
        return self._by_name.get(name)

    def grant(self, token: str) -> Lease | None:
        """The lease whose blocks may be read with a token; None: there is none (any more)."""
        lease = self._by_token.get(token)
        return lease if lease is not None and hmac.compare_digest(lease.token, token) else None

    def extend(self, lease: Lease) -> None:
        """See `Lease.extend`."""
        lease.ends_s = self._loop.time() + self.lease_s

    def release(self, name: str) -> bool:
        """Free the blocks of a lease at once; False when there is none."""
        lease = self._by_name.pop(name, None)
        if lease is None:
            return False
        del self._by_token[lease.token]
        if lease.timer is not None:
            lease.timer.cancel()
            lease.timer = None
        self._free(name)
        return True

    def release_all(self) -> None:
        """Free everything."""
        for name in list(self._by_name):
            self.release(name)

    def _look(self, lease: Lease) -> None:
        # Extending only moves the end: a timer for each block that is read would cost more than this.
        if lease.ends_s > self._loop.time():
            lease.timer = self._loop.call_at(lease.ends_s, self._look, lease)
            return
        self.expired += 1
        self.release(lease.name)
