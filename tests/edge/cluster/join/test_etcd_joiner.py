"""An engine's record in a real etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import EtcdClient, Outcome
from pointsman.edge.cluster.etcd.errors import LeaseLostError
from pointsman.edge.cluster.etcd.messages import KeyValue, Parts
from pointsman.edge.cluster.join.etcd_joiner import EtcdJoiner
from pointsman.edge.cluster.join.joining import JoinRecord
from support.etcd_server import EtcdServer

PREFIX = "/pointsman/default/workers/"


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


def record(port: int = 1) -> JoinRecord:
    return JoinRecord("a", f"http://a:{port}", {})


@asynccontextmanager
async def running(joiner: EtcdJoiner) -> AsyncIterator[None]:
    task = asyncio.create_task(joiner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def seen(client: EtcdClient, holds: Callable[[tuple[KeyValue, ...]], bool]) -> tuple[KeyValue, ...]:
    async with asyncio.timeout(60):
        while True:
            entries = (await client.read(PREFIX.encode(), prefix=True)).entries
            if holds(entries):
                return entries
            await asyncio.sleep(0.02)


async def test_in_and_out(client: EtcdClient) -> None:
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 60)
    async with running(joiner):
        (entry,) = await seen(client, bool)
        assert entry.key == b"/pointsman/default/workers/a"
        assert json.loads(entry.value) == {"name": "a", "url": "http://a:1"}
        await joiner.say(record().encoded("SIGTERM"))
        (said,) = await seen(client, bool)
        assert json.loads(said.value)["draining"] == "SIGTERM"
        assert said.lease == entry.lease != 0
    await joiner.leave()
    assert await seen(client, lambda entries: not entries) == ()


async def test_a_lost_lease_is_taken_anew(client: EtcdClient) -> None:
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 2)
    async with running(joiner):
        (first,) = await seen(client, bool)
        await client.revoke(first.lease)
        (second,) = await seen(client, bool)
        assert second.lease != first.lease


async def test_a_process_that_was_stopped_for_long(client: EtcdClient, caplog: pytest.LogCaptureFixture) -> None:
    """Its clock runs on while it does nothing; it counts its lease as over even before etcd does."""
    now_s = 0.0
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 2, lambda: now_s)
    async with running(joiner):
        (first,) = await seen(client, bool)
        await client.revoke(first.lease)
        now_s = 100.0
        (second,) = await seen(client, lambda entries: bool(entries) and entries[0].lease != first.lease)
        assert second.value == first.value
    assert "registering again" in caplog.text


async def test_etcd_is_wiped(etcd: EtcdServer, client: EtcdClient) -> None:
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 3)
    async with running(joiner):
        await seen(client, bool)
        await etcd.wipe()
        await etcd.start()
        await seen(client, bool)


async def test_etcd_comes_later(etcd: EtcdServer, client: EtcdClient) -> None:
    await etcd.stop()
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 60)
    async with running(joiner):
        await asyncio.sleep(0.05)
        await etcd.start()
        await seen(client, bool)


async def test_a_name_that_another_engine_has(client: EtcdClient, caplog: pytest.LogCaptureFixture) -> None:
    other = await client.grant(60)
    await client.put(f"{PREFIX}a".encode(), record(2).encoded(), other.id)
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 60)
    async with running(joiner):
        async with asyncio.timeout(8):
            while "http://a:2 is registered under this name" not in caplog.text:
                await asyncio.sleep(0.01)
        await client.revoke(other.id)
        await seen(client, lambda entries: bool(entries) and entries[0].value == record().encoded())


async def test_its_own_record_of_before(client: EtcdClient) -> None:
    """Killed and started again while the old lease still lives."""
    old = await client.grant(60)
    await client.put(f"{PREFIX}a".encode(), record().encoded("SIGTERM"), old.id)
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 60)
    async with running(joiner):
        (entry,) = await seen(client, lambda entries: entries[0].lease != old.id)
        assert entry.value == record().encoded()
        await client.revoke(old.id)
        assert len(await seen(client, bool)) == 1


@pytest.mark.parametrize("another", [False, True])
async def test_a_record_that_is_gone_while_its_lease_lives(client: EtcdClient, another: bool) -> None:
    """Deleted by hand, or overwritten: it is told again as soon as nobody else has the name."""
    key = f"{PREFIX}a".encode()
    joiner = EtcdJoiner(client, PREFIX, "a", record().encoded(), 3)
    async with running(joiner):
        (first,) = await seen(client, bool)
        if another:
            await client.put(key, record(2).encoded())
            async with asyncio.timeout(60):
                while await _lives(client, first.lease):  # it does not renew what is not its own any more
                    await asyncio.sleep(0.05)
        await client.delete(key)
        (second,) = await seen(client, bool)
        assert second.value == first.value
        assert second.lease != first.lease
    await joiner.leave()
    assert await seen(client, lambda entries: not entries) == ()


async def _lives(client: EtcdClient, lease: int) -> bool:
    try:
        await client.keep_alive(lease)
    except LeaseLostError:
        return False
    return True


async def test_told_to_stop_while_it_registers(client: EtcdClient) -> None:
    """The answer that it is registered never came: it takes its record away all the same."""
    written = asyncio.Event()

    class Slow(EtcdClient):
        async def transact(self, conditions: Parts, then: Parts, otherwise: Parts = ()) -> Outcome:
            await super().transact(conditions, then, otherwise)
            written.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

    async with Slow(client._gateway._access) as slow:
        joiner = EtcdJoiner(slow, PREFIX, "a", record().encoded(), 60)
        async with running(joiner), asyncio.timeout(60):
            await written.wait()
        assert await seen(client, bool)
        await joiner.leave()
    assert await seen(client, lambda entries: not entries) == ()
