"""Front ends that share a fleet over real sockets: each counts what the others have, and nothing once they are gone."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest

from pointsman.core.model.errors import EngineError
from pointsman.edge.cluster.replicas.settings import ReplicaSettings
from pointsman.edge.cluster.replicas.timing import BusTiming
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.wire.http1_client import Origin
from support.fetch import fetch
from support.free_ports import free_port
from support.scripted_fleet import Fleet, hang

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a text that is long enough " * 40}]}


def of(port: int, *peers: int, **fields: Any) -> ReplicaSettings:
    places = tuple(f"tcp://127.0.0.1:{peer}" for peer in peers)
    return ReplicaSettings(
        f"tcp://127.0.0.1:{port}", places, secret="the fleet's", timing=BusTiming(0.005, 0.1, 1.0), **fields
    )


def configured(text: str) -> ReplicaSettings:
    tree = load_text(text, "c.yaml", ConfigTree)
    return ReplicaSettings.of(tree.replicas, tree.etcd, {})


def others(frontend: Frontend) -> list[int]:
    return [worker.others.sequences for worker in frontend.ledger.snapshot().workers]


def text_blocks(frontend: Frontend) -> int:
    return frontend.ledger.snapshot().workers[0].text_blocks


async def page(fleet: Fleet, frontend: Frontend, path: str) -> str:
    return (await fetch(fleet.pool, Origin.parse(frontend.admin_url), "GET", path)).body.decode()


async def test_load_prompts_status_and_goodbye(fleet: Fleet) -> None:
    engine = await fleet.engine("a", answer=hang)
    ports = (free_port(), free_port())
    one = await fleet.open(replicas=of(ports[0], *ports), policy="prefix")
    two = Frontend(replace(one._settings, replicas=of(ports[1], *ports), port=0, admin_port=0))
    await two.start()
    try:
        await fleet.until(lambda: len(one.replication.statuses()) == len(two.replication.statuses()) == 1, 20.0)
        await fleet.until(lambda: bool(two.ledger.models()), 20.0)
        asking = asyncio.create_task(fleet.ask("/v1/chat/completions", CHAT))
        await fleet.until(lambda: engine.running == 1, 20.0)
        await fleet.until(lambda: others(two) == [1], 20.0)
        assert others(one) == [0]
        await fleet.until(lambda: 0 < text_blocks(one) == text_blocks(two), 20.0)
        shown = two.status()
        assert shown.workers[0].others == 1
        assert shown.workers[0].running == 0
        assert shown.replicas is not None
        (other,) = shown.replicas.others
        assert (other.replica, other.requests, other.complete) == (one.bus.replica, 1, True)
        metrics = await page(fleet, two, "/metrics")
        assert 'pointsman_replicas{state="complete"} 1.0' in metrics
        assert 'pointsman_worker_other_requests{worker="a/0"} 1.0' in metrics
        assert "pointsman_replica_messages_total" in metrics
        asking.cancel()
        await fleet.until(lambda: others(two) == [0], 20.0)
        asking = asyncio.create_task(fleet.ask("/v1/chat/completions", CHAT))
        await fleet.until(lambda: others(two) == [1], 20.0)
        await one.close()
        await fleet.until(lambda: others(two) == [0] and not two.replication.statuses(), 20.0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    finally:
        await two.close()


async def test_two_that_are_configured_as_people_do(fleet: Fleet) -> None:
    """What a file gives, not what a test makes: places are checked strings of their own there."""
    await fleet.engine("a")
    ports = (free_port(), free_port())
    peers = ", ".join(f"'tcp://127.0.0.1:{port}'" for port in ports)
    found = [configured(f"replicas: {{listen: 'tcp://127.0.0.1:{port}', peers: [{peers}]}}") for port in ports]
    one = await fleet.open(replicas=found[0])
    two = Frontend(replace(one._settings, replicas=found[1], port=0, admin_port=0))
    await two.start()
    try:
        await fleet.until(lambda: [s.name for s in one.replication.statuses()] == [f"tcp://127.0.0.1:{ports[1]}"], 20.0)
        await fleet.until(lambda: all(s.complete for s in two.replication.statuses()), 20.0)
    finally:
        await two.close()


async def test_one_that_is_alone_says_nothing_of_replicas(fleet: Fleet) -> None:
    await fleet.engine("a")
    one = await fleet.open()
    assert one.status().replicas is None
    assert "replica" not in await page(fleet, one, "/metrics")


async def test_a_place_that_is_taken_ends_the_start(fleet: Fleet) -> None:
    await fleet.engine("a")
    port = free_port()
    one = await fleet.open(replicas=of(port, port))
    two = Frontend(replace(one._settings, port=0, admin_port=0))
    with pytest.raises(EngineError, match=r"replicas: can't listen at .*name another place in replicas\.listen"):
        await two.start()


async def test_one_that_replaces_another_waits_for_its_place(fleet: Fleet) -> None:
    await fleet.engine("a")
    port, third = free_port(), free_port()
    old = await fleet.open(replicas=of(port, third))
    new = Frontend(replace(old._settings, replicas=of(port, third, patient=True), port=0, admin_port=0))
    other = Frontend(replace(old._settings, replicas=of(third, port), port=0, admin_port=0))
    await new.start()
    await other.start()
    try:
        await fleet.until(lambda: [s.replica for s in other.replication.statuses()] == [old.bus.replica], 20.0)
        await old.close()
        await fleet.until(lambda: [s.replica for s in other.replication.statuses()] == [new.bus.replica], 20.0)
    finally:
        await new.close()
        await other.close()


async def test_a_place_that_a_stranger_has_is_said_in_status(fleet: Fleet) -> None:
    """Not when it is of the front end that this one replaces."""
    await fleet.engine("a")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        one = await fleet.open(replicas=of(port, free_port(), patient=True))
        report = one.status().replicas
        assert report is not None
        assert report.trouble is not None
        assert f"tcp://127.0.0.1:{port} is taken by something else" in report.trouble
    await fleet.until(lambda: one.replication.trouble is None, 20.0)
    other = Frontend(replace(one._settings, replicas=of(port, port, patient=True), port=0, admin_port=0))
    await other.start()
    try:
        await fleet.until(lambda: bool(other.replication.statuses()), 20.0)
        assert other.replication.trouble is None
    finally:
        await other.close()
