"""An etcd of three members: one may go, and without a majority it knows nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import Changes, EtcdClient
from pointsman.edge.cluster.etcd.errors import EtcdUnreachableError
from support.etcd_server import EtcdServer, start_cluster

T = TypeVar("T")


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[tuple[EtcdServer, ...]]:
    started = await start_cluster(tmp_path, 3)
    yield started
    for member in started:
        await member.stop()


@pytest.fixture
async def client(members: tuple[EtcdServer, ...]) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdAccess(tuple(member.url for member in members), timeout_s=1.0)) as client:
        yield client


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Until a leader is there: on a busy machine one may lose its office at any time."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except EtcdUnreachableError:
                await asyncio.sleep(0.05)


async def put(client: EtcdClient, value: bytes) -> None:
    await patiently(lambda: client.put(b"/k", value))
    (entry,) = (await patiently(lambda: client.read(b"/k"))).entries
    assert entry.value == value


async def ended(changes: AsyncIterator[Changes]) -> EtcdUnreachableError:
    async with asyncio.timeout(60):
        with pytest.raises(EtcdUnreachableError) as caught:
            async for _ in changes:
                pass
    return caught.value


async def test_one_goes_and_then_another(members: tuple[EtcdServer, ...], client: EtcdClient) -> None:
    lease = await patiently(lambda: client.grant(60))
    await put(client, b"all")
    await members[0].stop()
    await put(client, b"two")
    assert await patiently(lambda: client.keep_alive(lease.id)) == 60

    last = EtcdClient(EtcdAccess((members[2].url,), timeout_s=1.0))
    watching = asyncio.create_task(ended(last.watch(b"/k", 1)))
    await asyncio.sleep(0.1)
    await members[1].stop()
    with pytest.raises(EtcdUnreachableError):
        await client.read(b"/k")
    with pytest.raises(EtcdUnreachableError):
        await client.put(b"/k", b"one")
    await watching  # a member that is alone would else say nothing for ever
    await last.close()

    await members[1].launch()
    await put(client, b"two again")


async def test_a_frozen_member(members: tuple[EtcdServer, ...], client: EtcdClient) -> None:
    await put(client, b"all")
    members[0].freeze()
    await put(client, b"two")
    members[0].thaw()
