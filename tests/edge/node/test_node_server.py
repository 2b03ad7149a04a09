from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman.core.model.errors import EngineError
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.node.client import NodeClient, NodeError
from pointsman.edge.node.documents import ProbeOrder
from pointsman.edge.node.server import NodeServer
from support.scripted_server import served
from support.waiting import eventually

TOKEN = Secret("a-token-for-tests")
SIZES = (64 << 10,)


@contextlib.asynccontextmanager
async def node(**settings: Any) -> AsyncIterator[tuple[NodeServer, str]]:
    server = NodeServer(time.monotonic, **({"token": TOKEN} | settings))
    await server.start("127.0.0.1", 0, 0)
    try:
        yield server, f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


async def test_a_node_says_what_it_is_and_is_asked_to_probe_another_one() -> None:
    async with node(name="one") as (_, url), node() as (other, target), NodeClient(TOKEN) as client:
        facts = await client.facts(url)
        assert facts.name == "one"
        assert facts.transports[-1] == "tcp"
        assert not facts.busy
        answer = await client.probe(url, ProbeOrder(target, ("tcp",), SIZES), 30)
        assert answer.probe.transport == "tcp"
        assert answer.probe.forth[0].size_bytes == answer.probe.back[0].size_bytes == SIZES[0]
        await eventually(lambda: other.probes.served == 1)  # it hears last that the other one hung up


async def test_nodes_of_one_host_share_memory() -> None:
    async with node() as (_, url), node() as (_, target), NodeClient(TOKEN) as client:
        assert (await client.probe(url, ProbeOrder(target, (), SIZES), 30)).probe.transport in ("shm", "nixl")


@pytest.mark.parametrize("token", [None, Secret("wrong")])
async def test_strangers_learn_nothing_but_that_it_lives(token: Secret | None) -> None:
    async with node() as (server, url), NodeClient(token) as client:
        with pytest.raises(NodeError, match="wants its token") as failed:
            await client.ticket(url)
        assert failed.value.status == 401
        assert not server.probes.strangers
        async with aiohttp.ClientSession() as session:
            assert (await session.get(f"{url}/health")).status == 200
            assert (await session.get(f"{url}/metrics")).status == 401


async def test_nodes_with_different_tokens_do_not_probe_each_other() -> None:
    async with node() as (_, url), node(token=Secret("another")) as (_, target), NodeClient(TOKEN) as client:
        with pytest.raises(NodeError, match="wants its token") as failed:
            await client.probe(url, ProbeOrder(target, (), SIZES), 30)
        assert failed.value.status == 502


async def test_a_node_that_is_told_to_probe_itself_says_what_is_wrong_with_the_url() -> None:
    async with node() as (_, url), NodeClient(TOKEN) as client:
        with pytest.raises(NodeError, match="leads back to the node that was to probe it") as failed:
            await client.probe(url, ProbeOrder(url.replace("127.0.0.1", "localhost"), (), SIZES), 30)
        assert failed.value.status == 502
        assert not (await client.facts(url)).busy


async def test_who_hangs_up_on_a_probe_leaves_the_node_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(10)

        async def ticket(request: web.Request) -> web.Response:
            return web.json_response({"ticket": "x", "port": silent.getsockname()[1]})

        app = web.Application()
        app.add_routes([web.post("/v1/ticket", ticket)])
        async with node() as (_, url), TestServer(app) as target, NodeClient(TOKEN) as client:
            asked = asyncio.create_task(client.probe(url, ProbeOrder(str(target.make_url("")).rstrip("/")), 200))
            peer, _ = await asyncio.to_thread(silent.accept)  # the probe now waits for half a minute
            with peer:
                assert (await client.facts(url)).busy
                asked.cancel()
                async with asyncio.timeout(10):
                    while (await client.facts(url)).busy:
                        await asyncio.sleep(0.01)


async def test_an_answer_in_pieces_is_one_answer() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"version": "1", "host"', b': "h", "transports": ', b'["tcp"]}'):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.add_routes([web.get("/v1/node", answer)])
    async with TestServer(app) as server, NodeClient(TOKEN) as client:
        assert (await client.facts(str(server.make_url("")).rstrip("/"))).host == "h"


async def test_a_node_that_is_being_probed_says_so() -> None:
    async with node() as (_, url), node() as (_, target), NodeClient(TOKEN) as client:
        await client.ticket(target)
        assert (await client.facts(target)).busy
        for asked in (client.ticket(target), client.probe(url, ProbeOrder(target), 30)):
            with pytest.raises(NodeError, match="another probe is under way") as failed:
                await asked
            assert failed.value.status == 409
        # Whoever asked for it in vain is free again.
        await client.ticket(url)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "target"),
        ({"target": "nowhere"}, "expected the URL of a node"),
        ({"target": "http://127.0.0.1:1", "transports": ["pigeons"]}, "transport pigeons does not work here"),
        ({"target": "http://127.0.0.1:1", "sizes_bytes": []}, "sizes_bytes"),
        ({"target": "http://127.0.0.1:1", "sizes_bytes": [1 << 50]}, "sizes_bytes"),
        ({"target": "http://127.0.0.1:1", "size_s": 1e9}, "size_s"),
        ({"target": "http://127.0.0.1:1", "more": 1}, "more"),
        (
            {"target": "http://127.0.0.1:1", "sizes_bytes": [1] * 16, "size_s": 10},
            "16 sizes of 10 s each way may take 640 s",
        ),
        ([[[]]], "can't be read"),
    ],
)
async def test_orders_that_can_not_be_carried_out_are_refused_by_name(body: object, said: str) -> None:
    async with node() as (_, url), aiohttp.ClientSession() as session:
        headers = {"authorization": f"Bearer {TOKEN.reveal()}"}
        async with session.post(f"{url}/v1/probe", data=json.dumps(body), headers=headers) as answer:
            assert answer.status == 400
            assert said in (await answer.json())["error"]["message"]


async def test_a_target_that_is_not_there_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        target = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with node() as (_, url), NodeClient(TOKEN) as client, aiohttp.ClientSession() as session:
            with pytest.raises(NodeError, match="can't be reached") as failed:
                await client.probe(url, ProbeOrder(target), 30)
            assert failed.value.status == 502
            assert "can't be reached" in caplog.text
            headers = {"authorization": f"Bearer {TOKEN.reveal()}"}
            text = await (await session.get(f"{url}/metrics", headers=headers)).text()
            assert 'pointsman_node_probes_total{outcome="failed"} 1.0' in text


async def test_a_port_that_is_taken_is_named() -> None:
    async with node() as (server, _):
        for ports, flag in (((server.port, 0), "--listen"), ((0, server.probes.port), "--probe-port")):
            other = NodeServer(time.monotonic)
            with pytest.raises(EngineError, match=f"choose another {flag}"):
                await other.start("127.0.0.1", *ports)


@pytest.mark.parametrize(
    ("url", "said"), [("http://127.0.0.1:1", "does `pointsman node` run there"), ("http://", "is no URL")]
)
async def test_a_client_says_why_a_node_does_not_answer(url: str, said: str) -> None:
    async with NodeClient(TOKEN) as client:
        with pytest.raises(NodeError, match=said):
            await client.facts(url)


async def test_what_is_no_node_is_told_apart() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    async with served(answer) as port, NodeClient(TOKEN) as client:
        with pytest.raises(NodeError, match="is no pointsman node of this version"):
            await client.facts(f"http://127.0.0.1:{port}")
