"""Embedded engines in this process that move KV among each other, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import aiohttp

from pointsman.edge.engines.embedded.loaded_model import LoadedModel, load_model
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from pointsman.edge.engines.embedded.transfer_settings import TransferSettings

COMPUTE_FOR_ANOTHER = {"do_remote_decode": True, "do_remote_prefill": False}
LIMIT_S = 60
_SAME = re.compile(r'(engine|model_name)="[^"]*",?')


@cache
def tiny(model: str = "seed:0") -> LoadedModel:
    return load_model(model)


class Mover:
    """One engine."""

    def __init__(self, server: EmbeddedServer, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    @property
    def engine(self) -> Any:
        return self.server.state.runner.engine

    @property
    def handover(self) -> Any:
        return self.server.state.runner.transfers

    async def post(self, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
        async with self.http.post(self.server.url + path, json=body) as answer:
            told = await answer.json()
            assert answer.status == status, told
        return dict(told)

    async def get(self, path: str) -> dict[str, Any]:
        async with self.http.get(self.server.url + path) as answer:
            return dict(await answer.json())

    async def complete(self, prompt: list[int], answer: int = 12, status: int = 200, **more: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": answer, "temperature": 0, "logprobs": 3, "return_token_ids": True}
        return await self.post("/v1/completions", {**body, "ignore_eos": True, **more}, status)

    async def prefill(self, prompt: list[int], **more: Any) -> dict[str, Any]:
        """The object that the other leg needs."""
        answer = await self.complete(prompt, 1, kv_transfer_params=COMPUTE_FOR_ANOTHER, **more)
        return dict(answer["kv_transfer_params"])

    async def stream(self, prompt: list[int], answer: int = 12, **more: Any) -> list[dict[str, Any]]:
        body = {"prompt": prompt, "max_tokens": answer, "temperature": 0, "stream": True, "ignore_eos": True, **more}
        async with self.http.post(self.server.url + "/v1/completions", json=body) as response:
            lines = [line.decode().strip() async for line in response.content]
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    async def metrics(self) -> dict[str, float]:
        """Values by name, with what tells a series from its siblings."""
        async with self.http.get(self.server.url + "/metrics") as answer:
            text = await answer.text()
        found = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[_SAME.sub("", name).replace("{}", "").replace(",}", "}")] = float(value)
        return found

    async def at_rest(self) -> None:
        """Waits until no block is held and nothing is on its way; the test's time-out is the limit."""
        model = self.engine.model
        while model.kv_use or model.held or not model.idle or len(self.handover.fetches) or len(self.handover.leases):
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def movers(count: int = 2, model: str = "seed:0", **settings: Any) -> AsyncIterator[list[Mover]]:
    """Engines whose settings are alike; `transfer_…` are those of transfers."""
    transfer = {
        name.removeprefix("transfer_"): settings.pop(name) for name in list(settings) if name.startswith("transfer_")
    }
    usual = {"num_blocks": 64, "max_num_seqs": 8, "max_batched_tokens": 64, "max_model_len": 512}
    servers = []
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as http:
        try:
            for _ in range(count):
                server = EmbeddedServer(EmbeddedSettings(**(usual | settings), transfer=TransferSettings(**transfer)))
                servers.append(server)
                await server.start()
                await server.load(tiny(model))
            yield [Mover(server, http) for server in servers]
        finally:
            for server in servers:
                await server.close()
