"""Sharing: replicas tell each other what tenants used, so that limits hold for all of them together."""

from __future__ import annotations

import asyncio
import logging
import math

import msgspec

from pointsman.core.limits.account import Spent
from pointsman.core.limits.book import Book, Row
from pointsman.edge.cluster.replicas.bus import Bus, NoBus
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.tenants.counts import TenantCounts

TOPIC = "limits"
TOLD_AFTER_S = 0.02
"""What changes within this time goes out together."""
MOST_ROWS = 1000
"""Of one message."""
_MOST = 1e15

_log = logging.getLogger("pointsman.serving")


class _WireRow(msgspec.Struct, array_like=True):
    subject: str
    requests: int
    tokens: float
    reserved: float
    running: int
    requests_left: float | None
    tokens_left: float | None
    delivered: float = 0.0

    def row(self) -> Row | None:
        """None: numbers that no front end says."""
        numbers = (self.requests, self.tokens, self.reserved, self.running, self.delivered)
        left = (self.requests_left, self.tokens_left)
        sane = all(0 <= number < _MOST for number in numbers)
        if not sane or any(level is not None and not -_MOST < level < _MOST for level in left):
            return None
        return Row(self.subject, Spent(*numbers), left)


_decoder = msgspec.msgpack.Decoder(list[_WireRow])
_encoder = msgspec.msgpack.Encoder()


class LimitsOnBus:
    """Says soon what changed, and now and then everything: a lost word is made good by the next one.

    What several replicas let through before they hear of each other adds up: with N of them a tenant that comes to all
    at once gets up to N times what it has saved up, and pays it back before it gets more.
    """

    def __init__(self, book: Book, bus: Bus, clock: Clock, counts: TenantCounts) -> None:
        self._book = book
        self._bus = bus
        self._clock = clock
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._said_unreadable = False
        self.alone = isinstance(bus, NoBus)
        bus.subscribe(TOPIC, self._heard, self._gone, self._whole)

    def changed(self) -> None:
        """An account changed."""
        if self._timer is None:
            self._timer = self._loop.call_later(TOLD_AFTER_S, self._tell)

    def look(self) -> None:
        """Now and then: say everything again."""
        if not self.alone:
            self._publish(self._book.again(self._clock()), even_nothing=True)

    def close(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        self._publish(self._book.changed(self._clock()))

    def _publish(self, rows: list[Row], *, even_nothing: bool = False) -> None:
        """Nothing is worth to be said, too: whoever hears it knows that there was nothing before."""
        for start in range(0, max(len(rows), even_nothing), MOST_ROWS):
            self._counts.told += 1
            self._bus.publish(TOPIC, _encoded(rows[start : start + MOST_ROWS]))

    def _whole(self) -> bytes | None:
        return _encoded(self._book.whole(self._clock()))

    def _heard(self, replica: str, payload: bytes) -> None:
        try:
            read = [wire.row() for wire in _decoder.decode(payload)]
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            self._unreadable(replica, str(error))
            return
        rows = [row for row in read if row is not None]
        if len(rows) < len(read):
            self._unreadable(replica, "numbers out of range")
        self._book.heard(replica, rows, self._clock())

    def _unreadable(self, replica: str, why: str) -> None:
        self._counts.unreadable += 1
        if not self._said_unreadable:
            self._said_unreadable = True
            _log.warning(
                "what front end %s says of limits can't be read: %s (said once; counted in "
                "pointsman_limits_unreadable_total)",
                replica,
                why,
            )

    def _gone(self, replica: str) -> None:
        self._book.gone(replica, self._clock())


def _encoded(rows: list[Row]) -> bytes:
    return _encoder.encode([_wire(row) for row in rows])


def _wire(row: Row) -> _WireRow:
    spent, (requests_left, tokens_left) = row.spent, row.levels
    return _WireRow(
        row.subject,
        spent.requests,
        _whole_number(spent.tokens),
        _whole_number(spent.reserved),
        spent.running,
        requests_left,
        tokens_left,
        spent.delivered,
    )


def _whole_number(tokens: float) -> float:
    return tokens if math.isfinite(tokens) else 0.0
