"""Clients that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from support.waiting import eventually

SLOW = {"sim": {"profile": "tiny"}, "embedded": {}}


async def send(server: Any, **fields: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own, which the test can cut."""
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 500, "ignore_eos": True, **fields}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(start: Any, kind: str, stream: bool) -> None:
    server = (await start(**SLOW[kind])).server
    model = server.state.runner.model
    reader, writer = await send(server, stream=stream, n=2)
    await eventually(lambda: model.running == 2)
    if stream:
        assert b"text_completion" in await reader.readuntil(b"\n\n")
    writer.close()
    await eventually(lambda: model.idle)
    assert model.kv_use == 0
    assert model.counters.aborted == server.state.metrics.ended["abort"] == 2
    assert server.state.metrics.served == 0


async def test_a_client_that_leaves_the_queue_is_gone(start: Any, kind: str) -> None:
    server = (await start(max_num_seqs=1, **SLOW[kind])).server
    model = server.state.runner.model
    _, first = await send(server, stream=True)
    _, second = await send(server, stream=True)
    await eventually(lambda: (model.running, model.waiting) == (1, 1))
    second.close()
    await eventually(lambda: model.waiting == 0)
    assert model.running == 1
    first.close()
    await eventually(lambda: model.idle)


async def test_closing_the_server_cuts_streams_and_leaves_no_task(start: Any, kind: str) -> None:
    before = asyncio.all_tasks()
    server = (await start(**SLOW[kind])).server
    reader, writer = await send(server, stream=True)
    await reader.readuntil(b"\n\n")
    await server.close()
    with pytest.raises(asyncio.IncompleteReadError):
        await reader.readuntil(b"data: [DONE]")
    writer.close()
    await eventually(lambda: asyncio.all_tasks() == before)
    await server.close()
    assert server.state.runner.model.idle


async def test_many_random_aborts_leave_nothing_behind(start: Any, kind: str) -> None:
    pace = {"sim": {"profile": "tiny", "speedup": 20}, "embedded": {}}[kind]
    server = (await start(num_blocks=128, max_num_seqs=8, **pace)).server
    model, ended = server.state.runner.model, server.state.metrics.ended
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
    await eventually(lambda: model.idle and sum(ended.values()) == 40)
    assert model.kv_use == 0
    assert model.counters.finished + model.counters.aborted == 40
    assert ended["length"] >= 13
