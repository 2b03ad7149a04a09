"""Engines that registered themselves: one is told to stop in the middle of a stream, front ends are replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pointsman.app.cli.model_places import model_places
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL
from support.etcd_server import EtcdServer

from .conftest import LIMIT_S, ROUNDS, Site

pytestmark = pytest.mark.faults
Call = Callable[..., Any]


def complete(url: str, tokens: int, *, stream: bool = False) -> tuple[int, bytes]:
    body = {"model": "m", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    sent = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", sent, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5 * LIMIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def engines(call: Call, admin_url: str) -> dict[str, tuple[str, int]]:
    """Name → state (`draining` where it drains), requests."""
    try:
        found = call("GET", f"{admin_url}/v1/workers")["engines"]
    except OSError:  # it is not there yet
        return {"nobody": ("answers", 0)}
    return {one["name"]: ("draining" if one["draining"] else one["state"], one["requests"]) for one in found}


def etcd_place(call: Call, admin_url: str) -> tuple[str, int, int]:
    """Its state, engines, and those of them that are kept."""
    places = call("GET", f"{admin_url}/v1/workers")["places"]
    (place,) = [one for one in places if one["origin"] == "etcd"]
    return place["state"], place["engines"], place["kept"]


async def under_way(call: Call, url: str, admin_url: str) -> asyncio.Task[tuple[int, bytes]]:
    """An answer of engine `a` that the front end says is under way; a fast machine may have ended one before that."""
    for _ in range(ROUNDS):
        answer = asyncio.create_task(asyncio.to_thread(complete, url, 100, stream=True))
        while not answer.done():
            if await asyncio.to_thread(engines, call, admin_url) == {"a": ("ready", 1)}:
                return answer
            await asyncio.sleep(0.01)
        assert (await answer)[0] == 200
    raise AssertionError("no answer was seen under way")


@pytest.mark.local
async def test_llama_cpp_is_told_to_stop_in_the_middle_of_a_stream(site: Site, call: Call) -> None:
    model = (await resolve(DEFAULT_MODEL, model_places(os.environ))).path
    front_end = site.run("serve", "--wait-for-engines", "--port", "0", "--admin-port", "0")
    line = await asyncio.to_thread(front_end.line, "pointsman serves")
    url, admin_url = line.split()[2].removesuffix("/v1"), line.split("admin: ")[1].split(";")[0]
    engine = site.run(
        *("engine", "--kind", "local", "--model", f"m={model}", "--slots", "1", "--context-tokens", "1024"),
        *("--port", "0", "--name", "a", "--join", admin_url),
    )
    engine_url = await asyncio.to_thread(engine.url, "engine local serves m at")
    await site.until(lambda: engines(call, admin_url) == {"a": ("ready", 0)}, 3 * LIMIT_S)
    running = await under_way(call, url, admin_url)
    engine.process.send_signal(signal.SIGTERM)
    await site.until(lambda: engines(call, admin_url)["a"][0] == "draining")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        await asyncio.to_thread(call, "GET", f"{engine_url}/health")
    status, body = await running
    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    assert await asyncio.to_thread(engine.process.wait, LIMIT_S) == 0
    await site.until(lambda: engines(call, admin_url) == {})
    assert await asyncio.to_thread(front_end.stop) == 0


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


async def test_front_ends_are_replaced_while_etcd_is_away(site: Site, call: Call, etcd: EtcdServer) -> None:
    """The new ones never read etcd, and serve its engines all the same."""
    sections = {"discovery": {"etcd": True}, "etcd": {"endpoints": [etcd.url], "fleet": "f"}}
    site.write_config([], **sections)
    ports = [site.port() for _ in range(3)]
    url, admin_urls = f"http://127.0.0.1:{ports[0]}", [f"http://127.0.0.1:{port}" for port in ports[1:]]
    front_ends = site.run(
        *("serve", "--config", "pointsman.yaml", "--processes", "2"),
        *("--port", str(ports[0]), "--admin-port", str(ports[1])),
    )
    site.run(
        *("engine", "--kind", "sim", "--model", "m", "--name", "a", "--port", "0", "--join-ttl", "60s"),
        *("--join", "etcd", "--join-config", "pointsman.yaml"),
    )
    for admin_url in admin_urls:
        await site.until(lambda admin_url=admin_url: engines(call, admin_url) == {"a": ("ready", 0)})  # type: ignore[misc]
    await etcd.stop()
    front_ends.process.send_signal(signal.SIGHUP)
    replaced = asyncio.create_task(asyncio.to_thread(front_ends.line, "all front ends are replaced"))
    statuses: list[int] = []
    while not replaced.done() or len(statuses) < 20:
        statuses.append((await asyncio.to_thread(complete, url, 1))[0])
    await replaced
    assert statuses == [200] * len(statuses)
    for admin_url in admin_urls:  # the old ones may still answer for a moment
        await site.until(lambda admin_url=admin_url: etcd_place(call, admin_url) == ("lost", 1, 1))  # type: ignore[misc]
    await etcd.start()
    for admin_url in admin_urls:
        await site.until(lambda admin_url=admin_url: etcd_place(call, admin_url) == ("connected", 1, 0))  # type: ignore[misc]
    assert (await asyncio.to_thread(complete, url, 1))[0] == 200
    assert await asyncio.to_thread(front_ends.stop) == 0
