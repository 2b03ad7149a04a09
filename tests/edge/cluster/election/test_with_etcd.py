"""Elections in a real etcd, and a leader whose process is stopped."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pointsman.edge.cluster.election.election import Leadership
from pointsman.edge.cluster.election.etcd_election import EtcdElection
from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import EtcdClient
from support.etcd_server import EtcdServer
from support.waiting import eventually

TTL_S = 2
LIMIT_S = 90.0
"""How soon somebody else leads is asked in virtual time (test_etcd_election); a loaded machine may take its time."""


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


def candidate(client: EtcdClient, name: str, ttl_s: int = TTL_S) -> EtcdElection:
    return EtcdElection(client, "test", "planner", name, ttl_s=ttl_s)


async def elected(election: EtcdElection) -> Leadership:
    async with asyncio.timeout(LIMIT_S):
        return await election.campaign()


async def test_one_leads_and_the_next_takes_over(etcd: EtcdServer) -> None:
    async with EtcdClient(EtcdAccess((etcd.url,))) as client:
        a, b = candidate(client, "a", ttl_s=60), candidate(client, "b", ttl_s=10)
        first = await elected(a)
        waiting = asyncio.create_task(b.campaign())
        await eventually(lambda: b.status.leader == "a", LIMIT_S)
        assert first.holds
        assert not waiting.done()
        await a.resign()
        async with asyncio.timeout(LIMIT_S):
            second = await waiting
        assert second.token > first.token
        assert b.status.leads
        await b.resign()


async def test_a_term_lasts_longer_than_its_lease_would_without_renewals(etcd: EtcdServer) -> None:
    """One may be lost on a loaded machine, as this process can't renew it while it gets no time."""
    async with EtcdClient(EtcdAccess((etcd.url,))) as client:
        a = candidate(client, "a")
        async with asyncio.timeout(LIMIT_S):
            while True:
                term = await a.campaign()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.5 * TTL_S):
                        await term.ended()
                if term.holds:
                    break
        await a.resign()


async def test_etcd_is_stopped_started_and_made_anew(etcd: EtcdServer) -> None:
    async with EtcdClient(EtcdAccess((etcd.url,), timeout_s=0.5)) as client:
        a = candidate(client, "a")
        first = await elected(a)
        await etcd.stop()
        async with asyncio.timeout(LIMIT_S):
            assert "its time is over" in await first.ended()
        waiting = asyncio.create_task(a.campaign())
        await eventually(lambda: a.status.trouble is not None, LIMIT_S)
        assert not waiting.done()
        await etcd.start()
        async with asyncio.timeout(LIMIT_S):
            second = await waiting
        assert second.token > first.token
        assert a.status.trouble is None
        await etcd.wipe()
        await etcd.start()
        async with asyncio.timeout(LIMIT_S):
            await second.ended()
        third = await elected(a)
        assert third.token > second.token
        await a.resign()


def _lead(url: str, told: Connection) -> None:
    """What the process does that is stopped: tells for each moment whether it may act."""

    async def work() -> None:
        async with EtcdClient(EtcdAccess((url,))) as client:
            election = candidate(client, "stopped one", ttl_s=4)
            term = await election.campaign()
            told.send(term.token)
            while True:
                told.send((time.monotonic(), term.holds, time.monotonic()))
                await asyncio.sleep(0.01)

    asyncio.run(work())


async def test_a_leader_that_was_stopped_does_not_act_once_another_leads(etcd: EtcdServer) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_lead, args=(etcd.url, theirs), daemon=True)
    process.start()
    try:
        token = await asyncio.to_thread(ours.recv)
        assert process.pid is not None
        async with EtcdClient(EtcdAccess((etcd.url,))) as client:
            b = candidate(client, "b", ttl_s=4)
            told = [await asyncio.to_thread(ours.recv)]
            os.kill(process.pid, signal.SIGSTOP)
            second = await elected(b)
            elected_s = time.monotonic()
            assert second.token > token
            os.kill(process.pid, signal.SIGCONT)
            while told[-1][0] < elected_s + 0.5:
                told.append(await asyncio.to_thread(ours.recv))
            assert any(holds for _, holds, _ in told)
            assert not any(holds for began_s, holds, _ in told if began_s > elected_s)
            await b.resign()
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        await asyncio.to_thread(process.join)
