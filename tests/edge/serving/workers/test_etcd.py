"""A front end that finds its engines in a real etcd, under traffic, while that is stopped, wiped and filled again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pointsman.core.ledger.events import Event, WorkerJoined, WorkerLeft
from pointsman.edge.cluster.discovery.discovery import DiscoveryState
from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import EtcdClient
from pointsman.edge.cluster.join.etcd_joiner import EtcdJoiner
from pointsman.edge.cluster.join.joining import JoinRecord
from pointsman.edge.serving.workers.settings import DiscoverySettings
from support.etcd_server import EtcdServer
from support.scripted_fleet import Fleet

PREFIX = "/pointsman/default/workers/"


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def joined(fleet: Fleet, etcd: EtcdServer, *names: str) -> AsyncIterator[dict[str, EtcdJoiner]]:
    """Engines that keep themselves registered."""
    async with EtcdClient(EtcdAccess((etcd.url,), timeout_s=1.0)) as client:
        joiners, tasks = {}, []
        for name in names:
            engine = await fleet.engine(name)
            record = JoinRecord(name, f"http://127.0.0.1:{engine.port}", {"kind": "openai", "models": ["m"]})
            joiners[name] = EtcdJoiner(client, PREFIX, name, record.encoded(), 3)
            tasks.append(asyncio.create_task(joiners[name].run()))
        fleet.engines = []
        try:
            yield joiners
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def usable(fleet: Fleet) -> set[str]:
    return {w.id.rpartition("/")[0] for w in fleet.frontend.ledger.snapshot().workers if w.usable}


async def test_stopped_wiped_and_filled_again_under_traffic(
    fleet: Fleet, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DiscoverySettings(etcd=EtcdAccess((etcd.url,), timeout_s=1.0))
    moves: list[Event] = []
    statuses: list[int] = []
    async with joined(fleet, etcd, "a", "b"):
        frontend = await fleet.open(discovery=settings)
        await fleet.until(lambda: usable(fleet) == {"a", "b"})
        apply = frontend.ledger.apply

        def watch(event: Event) -> None:
            if isinstance(event, WorkerJoined | WorkerLeft):
                moves.append(event)
            apply(event)

        monkeypatch.setattr(frontend.ledger, "apply", watch)
        stop = asyncio.Event()

        async def traffic() -> None:
            while not stop.is_set():
                statuses.append((await fleet.chat()).status)
                await asyncio.sleep(0.005)

        running = asyncio.create_task(traffic())
        place = lambda: frontend.engines.statuses()[-1]  # noqa: E731
        await etcd.stop()
        await fleet.until(lambda: place().state is DiscoveryState.LOST)
        asked = len(statuses)
        await fleet.until(lambda: len(statuses) > asked + 20)
        await etcd.start()
        await fleet.until(lambda: place().state is DiscoveryState.CONNECTED)
        await etcd.wipe()
        await fleet.until(lambda: place().state is DiscoveryState.LOST)
        await etcd.start()
        await fleet.until(lambda: place().state is DiscoveryState.CONNECTED and place().kept == 0)
        stop.set()
        await running
    assert usable(fleet) == {"a", "b"}
    assert moves == []
    assert set(statuses) == {200}
    fleet.at_rest()


async def test_an_engine_that_takes_its_leave(fleet: Fleet, etcd: EtcdServer) -> None:
    async with joined(fleet, etcd, "a", "b") as joiners:
        frontend = await fleet.open(discovery=DiscoverySettings(etcd=EtcdAccess((etcd.url,))))
        await fleet.until(lambda: usable(fleet) == {"a", "b"})
        await joiners["a"].say(joiners["a"]._record.replace(b"{", b'{"draining":"SIGTERM",', 1))
        await fleet.until(lambda: usable(fleet) == {"b"})
        (draining,) = [w for w in frontend.ledger.snapshot().workers if not w.usable]
        assert (draining.state, draining.reason) == ("draining", "SIGTERM")
        await joiners["a"].leave()
        await fleet.until(lambda: frontend.membership.member("a") is None)
        assert (await fleet.chat()).status == 200
