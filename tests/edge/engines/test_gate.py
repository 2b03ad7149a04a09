"""The gate before an engine: everything passes, until it is told that the engine drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from pointsman.edge.engines.gate import Gate
from pointsman.edge.engines.sim.faults import Faults
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings


@pytest.fixture
async def engine() -> AsyncIterator[SimServer]:
    server = SimServer(SimSettings(model="m"))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def gate(engine: SimServer) -> AsyncIterator[Gate]:
    made = Gate(engine.url)
    await made.start("127.0.0.1", 0)
    yield made
    await made.close()


@pytest.fixture
def url(gate: Gate) -> str:
    return f"http://127.0.0.1:{gate.port}"


def body(**more: object) -> dict[str, object]:
    return {"model": "m", "prompt": "hello", "max_tokens": 8, "stream": True, **more}


async def test_answers_pass_as_they_are(engine: SimServer, url: str, session: aiohttp.ClientSession) -> None:
    for path in ("/v1/models", "/version", "/health", "/nonesuch"):
        async with session.get(engine.url + path) as direct, session.get(url + path) as passed:
            assert (passed.status, await passed.read()) == (direct.status, await direct.read())
            assert passed.content_type == direct.content_type
    async with session.post(f"{url}/v1/completions", json=body()) as answer:
        text = await answer.text()
    assert text.endswith("data: [DONE]\n\n")
    async with session.post(f"{url}/v1/completions", json=body(n=-1)) as refused:
        assert refused.status == 400


async def test_draining(engine: SimServer, gate: Gate, url: str, session: aiohttp.ClientSession) -> None:
    engine.state.set_faults(Faults(first_byte_delay_ms=100))
    running = asyncio.create_task(session.post(f"{url}/v1/completions", json=body()))
    async with asyncio.timeout(30):
        while not gate.in_flight:
            await asyncio.sleep(0.001)
    gate.unready()
    async with session.get(f"{url}/health") as health, session.get(f"{url}/v1/models") as models:
        assert (health.status, models.status) == (503, 200)
    gate.refuse()
    async with session.post(f"{url}/v1/completions", json=body()) as late:
        assert late.status == 503
        assert "drains" in (await late.json())["error"]["message"]
    async with await running as answer:
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    assert gate.in_flight == 0


async def test_who_leaves_is_not_computed_for(
    engine: SimServer, gate: Gate, url: str, session: aiohttp.ClientSession
) -> None:
    engine.state.set_faults(Faults(slow_factor=1e6, hang=True))
    asking = asyncio.create_task(session.post(f"{url}/v1/completions", json=body()))
    async with asyncio.timeout(30):
        while not (gate.in_flight and engine._listener._answering):
            await asyncio.sleep(0.001)
    asking.cancel()
    async with asyncio.timeout(30):
        while gate.in_flight or engine._listener._answering:
            await asyncio.sleep(0.001)


async def test_an_engine_that_breaks_off(engine: SimServer, url: str, session: aiohttp.ClientSession) -> None:
    engine.state.set_faults(Faults(reset_after_tokens=2))
    async with session.post(f"{url}/v1/completions", json=body()) as answer:
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
    engine.state.set_faults(Faults(refuse=True))
    async with session.post(f"{url}/v1/completions", json=body()) as answer:
        assert answer.status == 502
    await engine.close()
    async with session.post(f"{url}/v1/completions", json=body()) as answer:
        assert answer.status == 503
