"""Limits of two front ends together, over the bus that they really use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from pointsman.edge.cluster.replicas.settings import ReplicaSettings
from pointsman.edge.cluster.replicas.timing import BusTiming
from pointsman.edge.configuration.tenants import TenantLimits, Tenants
from pointsman.edge.serving.tenants.tenancy import TenancySettings
from support.free_ports import free_port
from support.scripted_fleet import Fleet, hang

ACME = [(b"x-tenant-id", b"acme")]


@pytest.fixture
async def two() -> AsyncIterator[tuple[Fleet, Fleet]]:
    """Before one engine, which never answers."""
    async with AsyncExitStack() as stack:
        first, second = Fleet(stack), Fleet(stack)
        engine = await first.engine("a", answer=hang)
        second.engines.append(engine)
        limits = Tenants(default=TenantLimits(concurrency=2, tokens_per_minute=100_000))
        timing = BusTiming(batch_s=0.005, heartbeat_s=0.05, lost_after_s=0.5)
        places = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        for fleet, own, other in ((first, *places), (second, *reversed(places))):
            replicas = ReplicaSettings(listen=own, peers=(other,), timing=timing)
            await fleet.open(tenancy=TenancySettings(None, limits), replicas=replicas)
        for fleet in (first, second):
            await fleet.until(lambda fleet=fleet: len(fleet.frontend.replication.statuses()) == 1)
        yield first, second


def running(fleet: Fleet) -> int:
    account = fleet.frontend.tenancy.book.get("tenant:acme")
    return 0 if account is None else account.running


async def test_the_sum_counts_and_is_given_back(two: tuple[Fleet, Fleet]) -> None:
    first, second = two
    asking = [asyncio.create_task(fleet.chat(headers=ACME)) for fleet in two]
    for fleet in two:
        await fleet.until(lambda fleet=fleet: running(fleet) == 2)
    for fleet in two:
        assert (await fleet.chat(headers=ACME)).status == 429
    asking[0].cancel()
    for fleet in two:
        await fleet.until(lambda fleet=fleet: running(fleet) == 1)
    asking.append(asyncio.create_task(second.chat(headers=ACME)))
    await first.until(lambda: running(first) == 2)
    await second.frontend.close()
    await first.until(lambda: running(first) == 0)
    metrics = (await first.ask("/metrics", method="GET", admin=True)).body.decode()
    assert "pointsman_limits_unreadable_total 0.0" in metrics
    assert "pointsman_limits_told_total 0.0" not in metrics
    await asyncio.gather(*asking, return_exceptions=True)
