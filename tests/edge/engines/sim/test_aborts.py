from __future__ import annotations

import asyncio
import json
from typing import Any

from pointsman.edge.engines.sim.server import SimServer


async def send(server: SimServer, **fields: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own, which the test can cut."""
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 500, **fields}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


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
