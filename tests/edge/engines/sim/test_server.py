from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pointsman.core.model.errors import ConfigError, EngineError
from pointsman.edge.engines.sim.server import SimServer, SimSettings, serve_sim


async def test_it_serves_until_cancelled(session: Any) -> None:
    ready: asyncio.Future[SimServer] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(serve_sim(SimSettings(), ready.set_result))
    server = await ready
    async with session.get(server.url + "/health") as response:
        assert response.status == 200
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_port_that_is_taken_leaves_nothing_open(start_sim: Any) -> None:
    first = await start_sim()
    second = SimServer(SimSettings(port=first.port, kv_events="tcp://127.0.0.1:*"))
    with pytest.raises(OSError, match="in use"):
        await second.start()
    assert second.state.publisher._pub is None


async def test_an_event_endpoint_that_makes_no_sense_is_named() -> None:
    with pytest.raises(EngineError, match="'nonsense' can't be used"):
        await SimServer(SimSettings(kv_events="nonsense")).start()


def test_settings_are_checked_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="'fast' is not known"):
        SimServer(SimSettings(profile="fast"))


async def test_a_restart_may_stay_away_for_a_while(start_sim: Any, client_of: Any) -> None:
    server = await start_sim()
    client = client_of(server)
    assert (await client.post("/sim/faults", {"restart": True, "down_ms": 60_000})).status == 202
    for _ in range(1000):
        await asyncio.sleep(0)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except OSError:
            break
        writer.close()
    else:
        pytest.fail("still listening")
    # Closing it while it is away ends the wait.
    await asyncio.wait_for(server.close(), 30)


def test_urls_of_ipv6_addresses_have_brackets() -> None:
    server = SimServer(SimSettings(host="::1", port=81))
    assert server.url == "http://[::1]:81"
