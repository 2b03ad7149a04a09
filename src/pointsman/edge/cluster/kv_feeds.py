"""KvFeeds: one feed a worker whose engine sends KV events; for the others, why there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

import zmq

from pointsman.core.ledger.events import BlocksCleared, KvEvent
from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.kv_applier import Clock
from pointsman.edge.cluster.kv_feed import KvFeed
from pointsman.edge.cluster.kv_limits import KvLimits
from pointsman.edge.cluster.kv_source import KvSource, NoKvSource, kv_sources
from pointsman.edge.cluster.kv_standing import KvStanding
from pointsman.edge.cluster.kv_status import KvFeedStatus
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts


class _NoFeed:
    """Stands where a feed would be."""

    def __init__(self, source: NoKvSource, emit: Callable[[KvEvent], None], now_ms: Clock) -> None:
        self.source = source
        self._standing = KvStanding(source.worker, emit, now_ms)
        self._standing.off(source.reason, expected=source.expected)

    @property
    def status(self) -> KvFeedStatus:
        standing = self._standing
        return KvFeedStatus(self.source.worker, standing.state, standing.reason, standing.since_ms)

    def doubted(self) -> bool:
        return False

    def close(self) -> set[asyncio.Task[None]]:
        return set()


class KvFeeds:
    """Hears of engines from the prober (it is a FactsListener) and keeps their feeds. Close it before the event loop.

    `emit` gets events of workers that the ledger knows, on the event loop; none of a worker after it left.
    """

    def __init__(
        self,
        emit: Callable[[KvEvent], None],
        now_ms: Clock,
        *,
        timing: KvTiming | None = None,
        limits: KvLimits | None = None,
        wall_s: Clock = time.time,
    ) -> None:
        self._emit = emit
        self._now_ms = now_ms
        self._timing = timing or KvTiming()
        self._limits = limits or KvLimits()
        self._wall_s = wall_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._feeds: dict[str, dict[WorkerId, KvFeed | _NoFeed]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    # ---- heard from the prober

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """An engine said what it is. Feeds of workers that joined, or whose events are elsewhere now, begin anew."""
        feeds = self._feeds.setdefault(source.name, {})
        wanted = {where.worker: where for where in kv_sources(source, facts)}
        for worker in list(feeds):
            if worker in joined or feeds[worker].source != wanted.get(worker):
                self._end(feeds.pop(worker))
                if worker in wanted and worker not in joined:
                    # The ledger knows the worker's cache by the feed that ends here.
                    self._emit(BlocksCleared(worker, self._now_ms()))
        for worker, where in wanted.items():
            if worker not in feeds:
                feeds[worker] = self._begin(where)

    def engine_left(self, source: WorkerSource) -> None:
        """An engine is gone."""
        for feed in self._feeds.pop(source.name, {}).values():
            self._end(feed)

    # ---- the rest

    def doubted(self, worker: WorkerId) -> bool:
        """What a worker told does not fit together, as blocks whose parent nobody announced: its feed verifies itself.

        May be called as often as one likes. True: a replay is asked for now; what it shows is told as ever.
        """
        feed = next((feeds[worker] for feeds in self._feeds.values() if worker in feeds), None)
        return feed is not None and feed.doubted()

    def statuses(self) -> tuple[KvFeedStatus, ...]:
        """One a worker that was asked for its events so far."""
        return tuple(feed.status for feeds in self._feeds.values() for feed in feeds.values())

    async def close(self) -> None:
        """End all feeds. The ledger hears nothing of it."""
        for feeds in self._feeds.values():
            for feed in feeds.values():
                self._end(feed)
        self._feeds.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self, where: KvSource | NoKvSource) -> KvFeed | _NoFeed:
        if isinstance(where, NoKvSource):
            return _NoFeed(where, self._emit, self._now_ms)
        if self._context is None:
            self._context = zmq.Context()
            # A feed has three sockets, and a fourth while it asks for a replay.
            self._context.set(zmq.MAX_SOCKETS, min(65_535, self._context.get(zmq.SOCKET_LIMIT)))
        return KvFeed(where, self._context, self._emit, self._now_ms, self._timing, self._limits, self._wall_s)

    def _end(self, feed: KvFeed | _NoFeed) -> None:
        for task in feed.close():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
