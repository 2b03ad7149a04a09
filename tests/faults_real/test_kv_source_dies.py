"""A real engine is killed while another one reads its KV: the answer is the same, and the reader holds nothing."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

pytestmark = pytest.mark.faults

PROMPT = [(place * 29) % 250 + 5 for place in range(320)]
LIMIT_S = 120


class Engine:
    """A process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def ask(self, http: aiohttp.ClientSession, tokens: int, **more: Any) -> dict[str, Any]:
        body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 1, **more}
        async with http.post(f"{self.url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async def metric(self, http: aiohttp.ClientSession, name: str) -> float:
        async with http.get(f"{self.url}/metrics") as answer:
            found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", await answer.text(), re.M)
        return sum(map(float, found))

    async def until(self, http: aiohttp.ClientSession, name: str, wanted: float) -> None:
        """An answer may end for its client before it is counted."""
        async with asyncio.timeout(LIMIT_S):
            while await self.metric(http, name) != wanted:
                await asyncio.sleep(0.02)


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    command = [sys.executable, "-m", "pointsman.app.cli.main", "engine", "--kind", "embedded", "--port", "0"]
    running: list[Engine] = []
    try:
        for _ in range(2):
            process = await asyncio.create_subprocess_exec(
                *command, "--kv-transport", "tcp", "--kv-lease-s", "600", stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            running.append(Engine(process, ""))
            line = (await asyncio.wait_for(process.stdout.readline(), LIMIT_S)).decode()
            running[-1].url = line.split(" at ")[1].split()[0]
        yield running
    finally:
        for engine in running:
            if engine.process.returncode is None:
                engine.process.send_signal(signal.SIGTERM)
                await engine.process.wait()


@pytest.mark.parametrize("after_bytes", [0, 300, 60_000], ids=["before it answers", "as it answers", "midway"])
async def test_kill_9_while_kv_moves(engines: list[Engine], after_bytes: int) -> None:
    source, reader = engines

    async def pass_on(mine: asyncio.StreamReader, its: asyncio.StreamWriter) -> None:
        """Between the two: passes on so much of what the source sends, then the source is dead."""
        try:
            there, back = await asyncio.open_connection("127.0.0.1", params["remote_port"])
        except OSError:  # it is dead already, and is asked once more
            its.transport.abort()
            return
        its.transport.set_write_buffer_limits(0)  # what was drained has left
        back.write(await mine.read(1 << 16))
        left = after_bytes
        while left > 0 and (data := await there.read(min(left, 4096))):
            its.write(data)
            await its.drain()
            left -= len(data)
        if source.process.returncode is None:
            source.process.kill()
            await source.process.wait()
        back.close()
        its.transport.abort()

    async with aiohttp.ClientSession() as http:
        expected = (await source.ask(http, 24))["choices"]
        first = await source.ask(http, 1, kv_transfer_params={"do_remote_decode": True})
        params = first["kv_transfer_params"]
        proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        answer = await reader.ask(http, 24, kv_transfer_params={**params, "remote_port": port})
        assert answer["choices"] == expected
        told = answer["kv_transfer_params"]["pointsman_transfer"]
        assert told["failure"] in ("broken", "unreachable")
        assert (told["transferred_tokens"] > 0) == (after_bytes > 8192)
        assert told["transferred_tokens"] < len(PROMPT) - 1
        for name in ("vllm:kv_cache_usage_perc", "pointsman_kv_fetching", "pointsman_kv_leases"):
            await reader.until(http, name, 0)
        proxy.close()


async def test_a_reader_that_is_killed_leaves_its_source_free_when_it_is_told_so(engines: list[Engine]) -> None:
    source, reader = engines
    async with aiohttp.ClientSession() as http:
        first = await source.ask(http, 1, kv_transfer_params={"do_remote_decode": True})
        params = first["kv_transfer_params"]
        await source.until(http, "pointsman_kv_leases", 1)
        reader.process.kill()
        await reader.process.wait()
        name = {"remote_request_id": params["remote_request_id"]}
        async with http.post(f"{source.url}/kv/release", json=name) as answer:
            assert await answer.json() == {"released": True}
        await source.until(http, "vllm:kv_cache_usage_perc", 0)
        await source.until(http, "pointsman_kv_leases", 0)
