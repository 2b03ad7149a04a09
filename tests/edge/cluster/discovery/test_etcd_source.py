"""Engines in etcd: with a scripted etcd what a real one does not do on demand, and with a real one the rest."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.cluster.discovery.etcd_source import EtcdDiscovery, ReadsEtcd
from pointsman.edge.cluster.discovery.record import WorkerRecord
from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import Changes, EtcdClient, Listing
from pointsman.edge.cluster.etcd.errors import CompactedError, EtcdRefusedError, EtcdUnreachableError
from pointsman.edge.cluster.etcd.messages import Event, KeyValue
from pointsman.edge.cluster.members import WorkerSource
from support.etcd_server import EtcdServer
from support.virtual_time import in_virtual_time
from support.waiting import eventually

PREFIX = "/pointsman/default/workers/"


def source_of(record: WorkerRecord) -> WorkerSource:
    if record.profile is not None:
        raise ConfigError("there is no such profile")
    return WorkerSource(record.engine_name, str(record.url), draining=record.draining)


class Place:
    """An EtcdDiscovery and what it offers."""

    def __init__(self, client: ReadsEtcd, *, resync_s: float = 0.05, grace_s: float = 1000.0) -> None:
        self.offers: list[tuple[WorkerSource, ...]] = []
        self._passed_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.discovery = EtcdDiscovery(
            client,
            PREFIX,
            source_of,
            self._offer,
            lambda: 1000.0 * (self._loop.time() + self._passed_s),
            random.Random(1),
            resync_s=resync_s,
            grace_s=grace_s,
        )

    def _offer(self, sources: Sequence[WorkerSource]) -> None:
        self.offers.append(tuple(sources))

    def let_pass(self, seconds: float) -> None:
        """As if so much time had gone by."""
        self._passed_s += seconds
        self.discovery._changed.set()

    @property
    def names(self) -> list[str]:
        return [source.name for source in self.offers[-1]] if self.offers else []

    @property
    def state(self) -> DiscoveryState:
        return self.discovery.status.state

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.discovery.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def value_of(name: str, **more: object) -> bytes:
    return json.dumps({"url": f"http://{name}:8000", "name": name, **more}).encode()


class ScriptedEtcd:
    """Keys in memory. Its watch tells nothing while it is `silent`, and fails when it is `broken`."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.revision = 1
        self.silent = False
        self.broken: Exception | None = None
        self.watches = 0
        self.compacted = 0
        self._waiting: list[asyncio.Queue[Event | Exception]] = []

    def put(self, name: str, value: bytes | None = None) -> None:
        self.revision += 1
        key = (PREFIX + name).encode()
        self.values[key] = value_of(name) if value is None else value
        self._tell(Event(KeyValue(key, self.values[key], 1, self.revision)))

    def delete(self, name: str) -> None:
        self.revision += 1
        key = (PREFIX + name).encode()
        del self.values[key]
        self._tell(Event(KeyValue(key, mod_revision=self.revision), "DELETE"))

    def fail(self, error: Exception) -> None:
        self.broken = error
        for queue in self._waiting:
            queue.put_nowait(error)

    def _tell(self, event: Event) -> None:
        for queue in self._waiting:
            if not self.silent:
                queue.put_nowait(event)

    async def read(self, key: bytes, *, prefix: bool = False) -> Listing:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        return Listing(self.revision, 1, tuple(KeyValue(k, v, 1, 1) for k, v in self.values.items()))

    async def watch(self, key: bytes, from_revision: int, *, prefix: bool = False) -> AsyncIterator[Changes]:
        self.watches += 1
        if self.broken is not None:
            raise self.broken
        if from_revision <= self.compacted:
            raise CompactedError("compacted", self.compacted)
        queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._waiting.append(queue)
        try:
            yield Changes(from_revision - 1, ())
            while True:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                yield Changes(event.kv.mod_revision, (event,))
        finally:
            self._waiting.remove(queue)


@in_virtual_time
async def test_a_watch_that_died_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    etcd = ScriptedEtcd()
    etcd.put("a")
    place = Place(etcd, grace_s=0.05)
    async with place.running():
        await eventually(lambda: place.names == ["a"])
        etcd.silent = True
        etcd.put("b")
        await eventually(lambda: place.names == ["a", "b"])
        etcd.delete("a")
        await eventually(lambda: place.names == ["b"])
    assert place.discovery.status.missed_total >= 1
    assert etcd.watches >= 2
    assert "kept for 0.05 s" in caplog.text


@pytest.mark.parametrize("bad", [b'{"url": null, "name": "a"}', b"{", b'{"url": "http://a:8000", "weigth": 1}'])
@in_virtual_time
async def test_a_record_that_becomes_bad_is_no_farewell(bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    etcd = ScriptedEtcd()
    etcd.put("a")
    etcd.put("b", bad)
    place = Place(etcd, grace_s=0.05)
    async with place.running():
        await eventually(lambda: place.names == ["a"])
        etcd.put("a", bad)
        await eventually(lambda: len(place.discovery.status.ignored) == 2)
        assert place.names == ["a"]
        first, second = place.discovery.status.ignored
        stays = "; it stays as it was"
        assert {one.record[-1]: one.reason.endswith(stays) for one in (first, second)} == {"a": True, "b": False}
        etcd.put("a", value_of("a", url="http://elsewhere:1"))
        await eventually(lambda: place.offers[-1][0].url == "http://elsewhere:1")
        etcd.put("a", bad)
        etcd.delete("a")
        await eventually(lambda: place.names == [])


@in_virtual_time
async def test_what_is_kept_does_not_keep_out_what_is_there() -> None:
    """An engine killed and started again: under another name, or under its name at another address."""
    etcd = ScriptedEtcd()
    etcd.put("a", value_of("a", url="http://h:1"))
    etcd.put("b", value_of("b", url="http://h:2"))
    place = Place(etcd)
    async with place.running():
        await eventually(lambda: place.names == ["a", "b"])
        etcd.delete("a")
        etcd.delete("b")
        await eventually(lambda: place.discovery.status.kept == 2)
        assert place.names == ["a", "b"]
        etcd.put("z", value_of("z", url="http://h:1"))
        etcd.put("y", value_of("b", url="http://h:3"))
        await eventually(
            lambda: [(one.name, one.url) for one in place.offers[-1]] == [("b", "http://h:3"), ("z", "http://h:1")]
        )


@in_virtual_time
async def test_etcd_away(caplog: pytest.LogCaptureFixture) -> None:
    etcd = ScriptedEtcd()
    etcd.put("a")
    etcd.put("b")
    place = Place(etcd, grace_s=0.1)
    async with place.running():
        await eventually(lambda: place.names == ["a", "b"])
        etcd.delete("b")
        await eventually(lambda: place.discovery.status.kept == 1)
        etcd.fail(EtcdUnreachableError("connection refused"))
        await eventually(lambda: place.state is DiscoveryState.LOST)
        await asyncio.sleep(0.2)
        assert place.names == ["a", "b"]  # nothing is forgotten meanwhile
        etcd.broken = None
        await eventually(lambda: place.state is DiscoveryState.CONNECTED)
        assert place.names == ["a", "b"]
        await eventually(lambda: place.names == ["a"])
    assert [r.getMessage() for r in caplog.records if "can't be read" in r.getMessage()] == [
        f"etcd {PREFIX}: can't be read, its engines stay as they are: connection refused"
    ]


@in_virtual_time
async def test_what_etcd_refuses_is_trouble_too() -> None:
    etcd = ScriptedEtcd()
    etcd.fail(EtcdRefusedError("permission denied"))
    place = Place(etcd)
    async with place.running():
        await eventually(lambda: place.state is DiscoveryState.LOST)
        assert place.discovery.status.reason == "permission denied"
        etcd.broken = None
        etcd.put("a")
        await eventually(lambda: place.names == ["a"])


@in_virtual_time
async def test_compacted_between_listing_and_watch() -> None:
    etcd = ScriptedEtcd()
    etcd.put("a")
    etcd.compacted = 10
    place = Place(etcd)
    async with place.running():
        await eventually(lambda: etcd.watches >= 1)
        etcd.revision = 20
        etcd.put("b")
        await eventually(lambda: place.names == ["a", "b"])
        etcd.put("c")
        await eventually(lambda: place.names == ["a", "b", "c"])
    assert place.state is DiscoveryState.CONNECTED


@in_virtual_time
async def test_bad_records_are_ignored_alone(caplog: pytest.LogCaptureFixture) -> None:
    etcd = ScriptedEtcd()
    etcd.put("a")
    etcd.put("b", b'{"url": null}')
    etcd.put("c", b"{")
    etcd.put("d", value_of("d", weigth=1))
    etcd.put("e", value_of("e", profile="nonesuch"))
    etcd.put("f", value_of("f", kind="abacus"))
    place = Place(etcd)
    async with place.running():
        await eventually(lambda: place.names == ["a"])
        await eventually(lambda: place.discovery.status.missed_total == 0 and etcd.watches == 1)
        status = place.discovery.status
        assert status.ignored_total == (("malformed", 4), ("no_address", 1))
        assert [one.reason for one in status.ignored][:2] == [
            f"etcd {PREFIX}b: it has no address yet",
            f"etcd {PREFIX}c: this is no JSON: Input data was truncated",
        ]
        assert status.ignored[3].reason == f"etcd {PREFIX}e: there is no such profile"
        etcd.put("b")
        await eventually(lambda: place.names == ["a", "b"])
        assert len(place.discovery.status.ignored) == 4
    assert sum("is ignored" in record.getMessage() for record in caplog.records) == 5


@in_virtual_time
async def test_draining_and_going() -> None:
    etcd = ScriptedEtcd()
    etcd.put("a")
    place = Place(etcd)
    async with place.running():
        await eventually(lambda: place.names == ["a"])
        etcd.put("a", value_of("a", draining="SIGTERM"))
        await eventually(lambda: place.offers[-1][0].draining == "SIGTERM")
        etcd.delete("a")
        await eventually(lambda: place.names == [])  # at once: it said so
    assert len(place.offers) == 3


# ---- before a real one


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdAccess((etcd.url,), timeout_s=2.0)) as client:
        yield client


async def register(client: EtcdClient, *names: str, lease: int = 0) -> None:
    for name in names:
        await client.put((PREFIX + name).encode(), value_of(name), lease)


async def test_real_etcd_stopped_and_started(etcd: EtcdServer, client: EtcdClient) -> None:
    await register(client, "a", "b")
    place = Place(client, resync_s=20.0)
    async with place.running():
        await eventually(lambda: place.names == ["a", "b"])
        await etcd.stop()
        await eventually(lambda: place.state is DiscoveryState.LOST)
        assert place.names == ["a", "b"]
        await etcd.start()
        await eventually(lambda: place.state is DiscoveryState.CONNECTED)
        await register(client, "c")
        await eventually(lambda: place.names == ["a", "b", "c"])
        await client.delete((PREFIX + "c").encode())
        await eventually(lambda: place.discovery.status.kept == 1)
    assert len(place.offers) == 2


async def test_real_etcd_wiped_and_filled_again(etcd: EtcdServer, client: EtcdClient) -> None:
    await register(client, "a", "b", "c")
    place = Place(client, resync_s=20.0)
    async with place.running():
        await eventually(lambda: place.names == ["a", "b", "c"])
        await etcd.wipe()
        await etcd.start()
        await eventually(lambda: place.discovery.status.kept == 3)
        await register(client, "a", "b")
        await eventually(lambda: place.discovery.status.kept == 1)
        assert place.names == ["a", "b", "c"]
        place.let_pass(1000.0)
        await eventually(lambda: place.names == ["a", "b"])
    assert len(place.offers) == 2


async def test_real_etcd_compacted_while_nobody_watched(etcd: EtcdServer, client: EtcdClient) -> None:
    await register(client, "a")
    place = Place(client, resync_s=20.0)
    async with place.running():
        await eventually(lambda: place.names == ["a"])
        etcd.freeze()
        await asyncio.sleep(0.1)
        etcd.thaw()
        await register(client, "b")
        revision = await client.put(b"/elsewhere", b"")
        async with aiohttp.ClientSession() as session:
            await session.post(f"{etcd.url}/v3/kv/compaction", json={"revision": str(revision)})
        await eventually(lambda: place.names == ["a", "b"])
        await register(client, "c")
        await eventually(lambda: place.names == ["a", "b", "c"])


async def test_real_lease_that_ran_out(etcd: EtcdServer, client: EtcdClient) -> None:
    lease = await client.grant(60)
    await register(client, "a", lease=lease.id)
    place = Place(client, resync_s=20.0)
    async with place.running():
        await eventually(lambda: place.names == ["a"])
        await client.revoke(lease.id)
        await eventually(lambda: place.discovery.status.kept == 1)
        assert place.names == ["a"]
        place.let_pass(1000.0)
        await eventually(lambda: place.names == [])
