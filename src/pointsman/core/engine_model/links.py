"""KV transfers between workers that share their links.

It stands with the engine model because it is a model of what moves, driven by whoever has a clock; how fast links are
is in `core/timing/links.py`. Bandwidth is shared max-min fairly, as flows that all try to go faster share it: each
transfer is held up by the busier one of its two ends, and what it can't use there others get.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pointsman.core.timing.links import DEFAULT_LINK, Link

_Port = tuple[int, bool, int]
"""One end of transfers: worker, whether they go out, and the kind of link that they share there."""
_OWN = -1
"""Kind: the worker's own link."""


class _Transfer:
    __slots__ = ("begin_ms", "bytes_left", "end_ms", "number", "ports", "rate")

    def __init__(self, number: int, ports: tuple[_Port, ...], begin_ms: float, size_bytes: float) -> None:
        self.number = number
        self.ports = ports
        self.begin_ms = begin_ms
        """When its bytes begin to flow."""
        self.bytes_left = size_bytes
        self.rate = 0.0
        """Bytes a ms; 0 until it flows."""
        self.end_ms = math.inf


class LinkNetwork:
    """Transfers under way. Workers are numbers; each has a link that carries its speed out and, again, in."""

    def __init__(
        self,
        link: Link = DEFAULT_LINK,
        links: Mapping[int, Link] | None = None,
        between: Mapping[tuple[int, int], Link] | None = None,
    ) -> None:
        """`links` by worker; `link` is that of all others. `between`: of two workers (source, target) that reach each
        other another way, over NVLink or across racks; each worker has one link of every such kind."""
        self._link = link
        self._links = dict(links or {})
        self._kinds = list(dict.fromkeys((between or {}).values()))
        number = {each: kind for kind, each in enumerate(self._kinds)}
        self._between = {pair: number[each] for pair, each in (between or {}).items()}
        self._transfers: dict[int, _Transfer] = {}
        self._count = 0
        self._now_ms = 0.0
        self._fresh = True
        """The rates and ends are those of now."""
        self._ended: list[int] = []

    def __len__(self) -> int:
        return len(self._transfers)

    def start(self, now_ms: float, source: int, target: int, size_bytes: float) -> int:
        """Move bytes from a worker to another one; the transfer's number. Within one worker nothing has to move."""
        if not size_bytes >= 0:
            raise ValueError(f"size_bytes is {size_bytes}")
        self._go_to(now_ms)
        self._count += 1
        ports: tuple[_Port, ...] = ()
        begin_ms = now_ms
        if source != target:
            kind = self._between.get((source, target), _OWN)
            ports = ((source, True, kind), (target, False, kind))
            begin_ms += max(self._of(port).floor_ms for port in ports)
        else:
            size_bytes = 0.0
        self._transfers[self._count] = _Transfer(self._count, ports, begin_ms, size_bytes)
        self._fresh = False
        return self._count

    def cancel(self, now_ms: float, number: int) -> bool:
        """Nobody waits for a transfer any more: others get its bandwidth; False when it has ended."""
        self._go_to(now_ms)
        if number in self._ended:
            self._ended.remove(number)
            return True
        self._fresh = self._fresh and number not in self._transfers
        return self._transfers.pop(number, None) is not None

    def next_end_ms(self) -> float | None:
        """When `advance` has to be called next, not later than the next end; None when nothing moves."""
        if self._ended:
            return self._now_ms
        if not self._transfers:
            return None
        return self._next_change_ms()

    def advance(self, now_ms: float) -> list[int]:
        """Go on to `now_ms`: the transfers that have ended since the last call, in the order of their ends."""
        self._go_to(now_ms)
        ended, self._ended = self._ended, []
        return ended

    def alone(self, source: int, target: int) -> tuple[float, float]:
        """Floor in ms and bytes a ms of a transfer between two workers that shares nothing."""
        kind = self._between.get((source, target), _OWN)
        ends = [self._of((source, True, kind)), self._of((target, False, kind))]
        return max(end.floor_ms for end in ends), min(end.bytes_per_ms for end in ends)

    def _of(self, port: _Port) -> Link:
        worker, _, kind = port
        return self._links.get(worker, self._link) if kind == _OWN else self._kinds[kind]

    def _go_to(self, now_ms: float) -> None:
        if now_ms < self._now_ms:
            raise ValueError(f"time went back from {self._now_ms} to {now_ms} ms")
        while self._transfers and (change_ms := self._next_change_ms()) <= now_ms:
            self._flow_until(max(change_ms, self._now_ms))
            self._fresh = False
            done = [transfer for transfer in self._transfers.values() if transfer.end_ms <= self._now_ms]
            for transfer in done:
                del self._transfers[transfer.number]
                self._ended.append(transfer.number)
        self._flow_until(now_ms)

    def _flow_until(self, now_ms: float) -> None:
        elapsed_ms = now_ms - self._now_ms
        self._now_ms = now_ms
        if elapsed_ms:
            for transfer in self._transfers.values():
                transfer.bytes_left -= transfer.rate * elapsed_ms

    def _next_change_ms(self) -> float:
        """When a transfer ends, or begins to flow."""
        if not self._fresh:
            self._share()
        now_ms = self._now_ms
        return min(t.end_ms if t.begin_ms <= now_ms else t.begin_ms for t in self._transfers.values())

    def _share(self) -> None:
        """Give each flowing transfer its rate: the port that has least for each of its transfers first, and so on."""
        now_ms = self._now_ms
        users: dict[_Port, dict[int, _Transfer]] = {}
        for transfer in self._transfers.values():
            if transfer.begin_ms > now_ms:
                continue
            if transfer.bytes_left <= 0 or not transfer.ports:
                transfer.rate, transfer.end_ms = 0.0, now_ms
                continue
            for port in transfer.ports:
                users.setdefault(port, {})[transfer.number] = transfer
        left = {port: self._of(port).bytes_per_ms for port in users}
        while users:
            tightest = min(users, key=lambda port: left[port] / len(users[port]))
            rate = left[tightest] / len(users[tightest])
            for number, transfer in list(users[tightest].items()):
                transfer.rate, transfer.end_ms = rate, now_ms + transfer.bytes_left / rate
                for port in transfer.ports:
                    left[port] -= rate
                    del users[port][number]
            users = {port: transfers for port, transfers in users.items() if transfers}
        self._fresh = True
