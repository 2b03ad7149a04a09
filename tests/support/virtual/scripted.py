"""A front end before engines that do what a test says, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_server import HttpServer
from support.scripted_fleet import Engine
from support.virtual.client import Answer, VirtualClient
from support.virtual.loop import VirtualLoop
from support.virtual.network import HOST

_FRONT = "10.0.1.1"


@asynccontextmanager
async def scripted(loop: VirtualLoop, *engines: Engine, **settings: Any) -> AsyncIterator[Frontend]:
    """All engines can be used; at the end nothing may be counted any more."""
    sources = []
    for number, engine in enumerate(engines):
        address = f"10.0.0.{number + 1}"
        engine.server = HttpServer(engine._handle)
        token = HOST.set(address)
        await engine.server.start(address, 8000)
        HOST.reset(token)
        sources.append(WorkerSource(engine.name, f"http://{address}:8000", kind="openai", models=engine.models))
    made = FrontendSettings(
        sources=tuple(sources),
        host=_FRONT,
        port=8080,
        admin_host=_FRONT,
        admin_port=8081,
        seed=1,
        policy="round_robin",
    )
    token = HOST.set(_FRONT)
    frontend = Frontend(replace(made, **settings), lambda: loop.time() * 1000.0)
    await frontend.start()
    HOST.reset(token)
    while sum(worker.usable for worker in frontend.ledger.snapshot().workers) < len(engines):
        await asyncio.sleep(0.01)
    try:
        yield frontend
        await asyncio.sleep(1.0)
        snapshot = frontend.ledger.snapshot()
        assert (snapshot.running, snapshot.waiting) == (0, 0)
        assert [(w.running, w.prefill_tokens, w.kv_tokens) for w in snapshot.workers] == [(0, 0, 0)] * len(engines)
    finally:
        await frontend.close()
        for engine in engines:
            await engine.close()


async def chatted(frontend: Frontend, **fields: Any) -> Answer:
    """A chat from its beginning to its end."""
    client = VirtualClient()
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True} | fields
    try:
        return await client.ask(frontend.url, "POST", "/v1/chat/completions", body)
    finally:
        await client.close()
