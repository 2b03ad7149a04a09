"""EtcdDiscovery: engines that registered in etcd. A watch tells of changes; listings find what it missed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.discovery.discovery import DiscoveryStatus, Offer, ReadRecord
from pointsman.edge.cluster.discovery.etcd_view import EtcdView
from pointsman.edge.cluster.discovery.record import NoAddressError, WorkerRecord, record_of_json
from pointsman.edge.cluster.discovery.standing import MALFORMED, NO_ADDRESS, Standing
from pointsman.edge.cluster.etcd.client import Changes, Listing
from pointsman.edge.cluster.etcd.errors import CompactedError, EtcdError
from pointsman.edge.cluster.members import WorkerSource, checked, same_url

ORIGIN = "etcd"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_STEADY_S = 10.0
"""A watch that lasted so long was no failure of the last try."""

_log = logging.getLogger("pointsman.cluster")


class ReadsEtcd(Protocol):
    """The part of EtcdClient that is needed here."""

    async def read(self, key: bytes, *, prefix: bool = False) -> Listing:
        """As EtcdClient's."""
        ...

    def watch(self, key: bytes, from_revision: int, *, prefix: bool = False) -> AsyncIterator[Changes]:
        """As EtcdClient's."""
        ...


class EtcdDiscovery:
    """All keys that begin with `prefix`, each with an engine's record in JSON.

    While etcd can't be read, engines stay as they were: probes still say which of them answer. The client belongs to
    the caller.
    """

    def __init__(
        self,
        client: ReadsEtcd,
        prefix: str,
        read: ReadRecord,
        offer: Offer,
        now_ms: Callable[[], float],
        rng: random.Random,
        *,
        resync_s: float = 20.0,
        grace_s: float = 30.0,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._key = prefix.encode()
        self._read = read
        self._offer = offer
        self._now_ms = now_ms
        self._rng = rng
        self._resync_s = resync_s
        self._grace_s = grace_s
        self._standing = Standing(ORIGIN, prefix, now_ms)
        self._view = EtcdView(_means_to_leave, 1000 * grace_s)
        self._sources: tuple[WorkerSource, ...] | None = None
        self._known: dict[bytes, tuple[bytes, WorkerSource | ConfigError]] = {}
        """What values were read as."""
        self._good: dict[bytes, WorkerSource] = {}
        """What was last read of keys that are there or kept."""
        self._kept: frozenset[bytes] = frozenset()
        """That were said to be kept."""
        self._changed = asyncio.Event()

    @property
    def status(self) -> DiscoveryStatus:
        """As it stands now."""
        return self._standing.status(len(self._sources or ()), len(self._view.kept))

    @property
    def known(self) -> Mapping[bytes, bytes]:
        """Record by key, also of engines that are kept."""
        return self._view.values

    def hear(self, records: Mapping[bytes, bytes]) -> bool:
        """What another front end knows, while etcd could not be read here so far; whether it is used."""
        if not self._view.heard(records):
            return False
        self._kept = self._view.kept
        self._tell()
        return True

    async def run(self) -> None:
        """Watches until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        forgetting = asyncio.create_task(self._forget(), name="etcd engines that vanished")
        try:
            while True:
                began_s = loop.time()
                try:
                    await self._list()
                    await self._follow()
                except CompactedError:
                    self._standing.missed += 1
                except EtcdError as error:
                    self._standing.lose(str(error))
                except Exception as error:
                    _log.exception("etcd %s: could not be followed, for a reason that nobody expected", self._prefix)
                    self._standing.lose(repr(error))
                if loop.time() - began_s >= _STEADY_S:
                    pause_s = _FIRST_PAUSE_S
                await asyncio.sleep(pause_s * self._rng.uniform(0.75, 1.25))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            forgetting.cancel()
            await asyncio.gather(forgetting, return_exceptions=True)

    async def _list(self) -> bool:
        """Reads everything; whether something was new."""
        asked_revision = self._view.revision
        listing = await self._client.read(self._key, prefix=True)
        if self._standing.lost:
            self._view.returned(self._now_ms())
        self._standing.connect()
        news = self._view.listed(listing, asked_revision, self._now_ms())
        self._tell()
        return news

    async def _follow(self) -> None:
        """Until a listing finds what the watch has missed, or something fails."""
        watching = asyncio.create_task(self._watch(), name="etcd watch")
        listing = asyncio.create_task(self._resync(), name="etcd listings")
        tasks = (watching, listing)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _watch(self) -> None:
        async for changes in self._client.watch(self._key, self._view.revision + 1, prefix=True):
            self._view.changed(changes, self._now_ms())
            if changes.events:
                self._tell()

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._resync_s * self._rng.uniform(0.75, 1.0))
            if await self._list():
                self._standing.missed += 1
                return

    async def _forget(self) -> None:
        """Forgets in time what is kept."""
        while True:
            due_ms = self._view.next_ms
            if due_ms is not None and not self._standing.lost and due_ms <= self._now_ms():
                self._view.tick(self._now_ms())
                self._tell()
                continue
            wait_s = None if due_ms is None or self._standing.lost else (due_ms - self._now_ms()) / 1000
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _tell(self) -> None:
        self._changed.set()
        self._say_kept()
        there: list[WorkerSource] = []
        kept: list[WorkerSource] = []
        ignored: set[str] = set()
        known, self._known = self._known, {}
        good, self._good = self._good, {}
        for key, value in sorted(self._view.values.items()):
            read = known.get(key)
            if read is None or read[0] != value:
                read = (value, self._parsed(value, _where(key)))
            self._known[key] = read
            source = read[1] if isinstance(read[1], WorkerSource) else good.get(key)
            if source is not None:
                self._good[key] = source
                (kept if key in self._kept else there).append(source)
            if isinstance(read[1], WorkerSource):
                continue
            where = _where(key)
            ignored.add(where)
            kind = NO_ADDRESS if isinstance(read[1], NoAddressError) else MALFORMED
            text = str(read[1])
            if source is not None:
                text += "; it stays as it was"
            self._standing.ignore(where, kind, text if text.startswith(where) else f"{where}: {text}")
        self._standing.use(ignored)
        sources = (*there, *_not_replaced(kept, there))
        if self._sources != sources:
            self._sources = sources
            self._offer(sources)

    def _parsed(self, value: bytes, where: str) -> WorkerSource | ConfigError:
        try:
            (source,) = checked([self._read(record_of_json(value, where, WorkerRecord))])
        except ConfigError as error:
            return error
        return source

    def _say_kept(self) -> None:
        before, self._kept = self._kept, self._view.kept
        news = sorted(key.decode(errors="replace") for key in self._kept - before)
        if news:
            _log.warning(
                "etcd does not know %s any more, and the engines did not say that they go: kept for %g s",
                ", ".join(news),
                self._grace_s,
            )


def _not_replaced(kept: Sequence[WorkerSource], there: Sequence[WorkerSource]) -> list[WorkerSource]:
    """An engine that came back under another name or at another address is not kept out by what it was before."""
    names, urls = {one.name for one in there}, {same_url(one.url) for one in there}
    return [one for one in kept if one.name not in names and same_url(one.url) not in urls]


def _where(key: bytes) -> str:
    return f"etcd {key.decode(errors='replace')}"


def _means_to_leave(value: bytes) -> bool:
    """An engine that goes says so before."""
    try:
        record = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return True
    return not isinstance(record, dict) or bool(record.get("draining"))
