"""PrefixLoans: a front end that starts asks another one what was sent where; else it would begin with empty hands.

Only of workers that announce nothing: what others hold they say themselves. It asks one of the others, when it knows
its workers, and the next one when that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from pointsman.core.ledger.events import ReplicaTold
from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.cluster.replicas.bus import Bus, ReplicaId
from pointsman.edge.cluster.replicas.ledger_news import decode_news, encode_news

TOPIC = "prefixes"
MOST_KEYS = 65_536
"""That are lent: half a megabyte, and some 30 ms of whoever takes them in."""
_LOOK_S = 0.5
_ANSWER_S = 3.0
_PATIENCE_S = 60.0
"""Whoever is alone for so long has learned by itself."""


class _Note(msgspec.Struct, array_like=True, frozen=True):
    to: ReplicaId
    news: bytes = b""
    """Empty: a wish."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Note)


class PrefixLoans:
    """Of one front end; lends whenever it is asked."""

    def __init__(
        self, ledger: Ledger, bus: Bus, now_ms: Callable[[], float], others: Callable[[], list[ReplicaId]]
    ) -> None:
        """`others`: replicas of which everything is known, the one that came first first."""
        self._ledger = ledger
        self._bus = bus
        self._now_ms = now_ms
        self._others = others
        self._answered = False
        bus.subscribe(TOPIC, self._heard, lambda replica: None, lambda: None)

    @property
    def answered(self) -> bool:
        """It was lent something."""
        return self._answered

    async def run(self) -> None:
        """Ask until one answers, or it is too late to matter."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _PATIENCE_S
        asked: set[ReplicaId] = set()
        while not self._answered and loop.time() < until_s:
            unasked = [replica for replica in self._others() if replica not in asked]
            if not unasked or not self._ledger.models():
                await asyncio.sleep(_LOOK_S)
                continue
            await asyncio.sleep(_LOOK_S)  # other engines answer at about the same time
            asked.add(unasked[0])
            self._bus.publish(TOPIC, _ENCODER.encode(_Note(unasked[0])))
            await asyncio.sleep(_ANSWER_S)

    def _heard(self, replica: ReplicaId, payload: bytes) -> None:
        note = _DECODER.decode(payload)
        if note.to != self._bus.replica:
            return
        if not note.news:
            news = self._ledger.sent_before(MOST_KEYS)
            self._bus.publish(TOPIC, _ENCODER.encode(_Note(replica, encode_news(news))))
        elif not self._answered:
            self._answered = True
            self._ledger.apply(ReplicaTold(replica, self._now_ms(), decode_news(note.news)))
