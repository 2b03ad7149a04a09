from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pointsman.edge.engines.sim.server import SimServer


async def send(server: SimServer, **fields: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own, which the test can cut."""
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 500, **fields}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(start_sim: Any, eventually: Any, stream: bool) -> None:
    server = await start_sim(profile="tiny")
    engine = server.state.runner.engine
    reader, writer = await send(server, stream=stream, n=2)
    await eventually(lambda: engine.running == 2)
    if stream:
        assert b"text_completion" in await reader.readuntil(b"\n\n")
    writer.close()
    await eventually(lambda: engine.idle)
    assert engine.kv_use == 0
    assert engine.counters.aborted == server.state.metrics.ended["abort"] == 2
    assert server.state.metrics.served == 0


async def test_a_client_that_leaves_the_queue_is_gone(start_sim: Any, eventually: Any) -> None:
    server = await start_sim(profile="tiny", max_num_seqs=1)
    engine = server.state.runner.engine
    _, first = await send(server, stream=True)
    _, second = await send(server, stream=True)
    await eventually(lambda: (engine.running, engine.waiting) == (1, 1))
    second.close()
    await eventually(lambda: engine.waiting == 0)
    assert engine.running == 1
    first.close()
    await eventually(lambda: engine.idle)


async def test_closing_the_server_cuts_streams_and_leaves_no_task(start_sim: Any, eventually: Any) -> None:
    before = asyncio.all_tasks()
    server = await start_sim(profile="tiny")
    reader, writer = await send(server, stream=True)
    await reader.readuntil(b"\n\n")
    await server.close()
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readuntil(b"data: [DONE]")
    writer.close()
    await eventually(lambda: asyncio.all_tasks() == before)
    await server.close()
    assert server.state.runner.engine.idle


async def test_many_random_aborts_leave_nothing_behind(start_sim: Any, eventually: Any) -> None:
    server = await start_sim(profile="tiny", speedup=20, num_blocks=128, max_num_seqs=8)
    engine = server.state.runner.engine
    readers = [await send(server, stream=bool(number % 2), max_tokens=5 + number % 90) for number in range(40)]
    for number, (reader, writer) in enumerate(readers):
        if number % 3 == 0:
            writer.close()
        elif number % 3 == 1:
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
    for number, (reader, writer) in enumerate(readers):
        if number % 3 == 2:
            await reader.readuntil(b"data: [DONE]\n\n" if number % 2 else b"kv_transfer_params")
            writer.close()
    await eventually(lambda: engine.idle)
    assert engine.kv_use == 0
    ended = server.state.metrics.ended
    assert sum(ended.values()) == engine.counters.finished + engine.counters.aborted == 40
    assert ended["length"] >= 13
