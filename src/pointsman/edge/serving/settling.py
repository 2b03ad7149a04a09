"""Settling: a front end that others wait for listens once it knows what they know."""

from __future__ import annotations

import asyncio

from pointsman.core.ledger.ledger import Ledger
from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.cluster.replicas.replication import Replication
from pointsman.edge.cluster.status import NOT_ASKED_YET
from pointsman.edge.serving.workers.engines import Engines

POLL_S = 0.02
SETTLED_TIMES = 3
"""In a row: what one look finds may only be on its way to where the next one looks."""


async def settle(limit_s: float, replication: Replication, engines: Engines, prober: Prober, ledger: Ledger) -> None:
    """Wait until it has heard its like, every engine was asked and one is usable; at most `limit_s`."""

    def settled() -> bool:
        heard = replication.alone or any(peer.complete for peer in replication.statuses())
        found = all(place.state is not DiscoveryState.LOOKING for place in engines.statuses())
        asked = all(engine.reason != NOT_ASKED_YET for engine in prober.statuses())
        return heard and found and asked and any(worker.usable for worker in ledger.snapshot().workers)

    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    times = 0
    while times < SETTLED_TIMES and loop.time() < deadline_s:
        await asyncio.sleep(POLL_S)
        times = times + 1 if settled() else 0
