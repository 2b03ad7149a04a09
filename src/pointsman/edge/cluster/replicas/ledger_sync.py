"""LedgerSync: tells other front ends what the ledger has to tell, and the ledger what they tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pointsman.core.ledger.events import ReplicaGone, ReplicaTold
from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.cluster.replicas.bus import Bus, ReplicaId
from pointsman.edge.cluster.replicas.ledger_news import TOPIC, decode_news, encode_news

TELL_S = 0.01
"""What happens within such a time is told together: of a worker where much happens only how it ended up."""


class LedgerSync:
    """Begins at once; `now_ms` is the ledger's clock."""

    def __init__(self, ledger: Ledger, bus: Bus, now_ms: Callable[[], float], tell_s: float = TELL_S) -> None:
        self._ledger = ledger
        self._bus = bus
        self._now_ms = now_ms
        self._tell_s = tell_s
        self._loop = asyncio.get_running_loop()
        bus.subscribe(TOPIC, self._heard, self._gone, self._whole)
        ledger.tell_others(self._wake)

    def _wake(self) -> None:
        self._loop.call_later(self._tell_s, self._tell)

    def _tell(self) -> None:
        news = self._ledger.news(self._now_ms())
        # By then what the others told at the same time is here.
        self._loop.call_later(self._tell_s, self._ledger.heard_news)
        if news:
            self._bus.publish(TOPIC, encode_news(news))

    def _whole(self) -> bytes:
        return encode_news(self._ledger.whole_news(self._now_ms()))

    def _heard(self, replica: ReplicaId, payload: bytes) -> None:
        self._ledger.apply(ReplicaTold(replica, self._now_ms(), decode_news(payload)))

    def _gone(self, replica: ReplicaId) -> None:
        self._ledger.apply(ReplicaGone(replica, self._now_ms()))
