"""Front ends find each other in a real etcd, and stay known while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import EtcdClient
from pointsman.edge.cluster.replicas.etcd_places import EtcdReplicas
from pointsman.edge.cluster.replicas.settings import EtcdPlaces
from support.etcd_server import EtcdServer
from support.waiting import eventually


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


class Replica:
    def __init__(
        self, etcd: EtcdServer, name: str, advertise: str, port: int | None = None, keep_s: float = 60.0
    ) -> None:
        places = EtcdPlaces(EtcdAccess((etcd.url,), timeout_s=0.5), "/pointsman/f/replicas/", advertise)
        self.replicas = EtcdReplicas(places, name, port, again_s=0.05, keep_s=keep_s)
        self.found: Collection[str] = []
        self.fewest = 100
        """Of those that were found at once, since somebody last asked for it."""
        self.task = asyncio.create_task(self.replicas.run(self._found))

    def _found(self, places: Collection[str]) -> None:
        self.found = sorted(places)
        self.fewest = min(self.fewest, len(places))

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_found_lost_and_found_again(etcd: EtcdServer) -> None:
    a = Replica(etcd, "a", "tcp://10.0.0.1:8082", keep_s=0.5)
    b = Replica(etcd, "b", "tcp://10.0.0.2:0", port=4711, keep_s=0.5)
    both = ["tcp://10.0.0.1:8082", "tcp://10.0.0.2:4711"]
    try:
        await eventually(lambda: a.found == b.found == both)
        await etcd.stop()
        await eventually(lambda: a.replicas.trouble is not None)
        assert a.found == both
        await etcd.start()
        await eventually(lambda: a.replicas.trouble is None and b.replicas.trouble is None)
        await b.stop()
        await eventually(lambda: a.found == both[:1], 30.0)  # with its lease, if it could not say that it goes
        async with EtcdClient(EtcdAccess((etcd.url,))) as client:
            await client.put(b"/pointsman/f/replicas/x", b"nonsense")
            await client.put(b"/pointsman/f/replicas/y", b"tcp://10.0.0.3:1")
        await eventually(lambda: a.found == [*both[:1], "tcp://10.0.0.3:1"])
    finally:
        await a.stop()
        await b.stop()


async def test_it_registers_again_in_an_etcd_that_was_made_anew(etcd: EtcdServer) -> None:
    """Nobody loses sight of those who live on meanwhile."""
    a, b = Replica(etcd, "a", "tcp://10.0.0.1:8082"), Replica(etcd, "b", "tcp://10.0.0.2:8082")
    both = ["tcp://10.0.0.1:8082", "tcp://10.0.0.2:8082"]
    try:
        await eventually(lambda: a.found == b.found == both)
        a.fewest = 100
        await etcd.wipe()
        await etcd.start()
        # Its lease is lost, as it hears with the next renewal.
        await eventually(lambda: a.replicas.trouble is not None)
        async with EtcdClient(EtcdAccess((etcd.url,))) as client:

            async def keys() -> int:
                return len((await client.read(b"/pointsman/f/replicas/", prefix=True)).entries)

            async with asyncio.timeout(15.0):
                while await keys() < 2:
                    await asyncio.sleep(0.05)
        await eventually(lambda: a.replicas.trouble is None)
        assert a.fewest == 2
    finally:
        await a.stop()
        await b.stop()
