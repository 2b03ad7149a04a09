"""Real processes of one `serve --processes`: each counts what the others have, whatever happens to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.free_ports import free_ports

Start = Callable[..., Any]
STREAMS = 6
COUNT = 3


def counts(admin_port: int) -> tuple[int, int, int]:
    """What a front end has, what it thinks that the others have, and how many it hears."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/v1/status", timeout=60) as answer:
        status = json.load(answer)
    workers = status["workers"]
    own, others = sum(w["running"] for w in workers), sum(w["others"] for w in workers)
    return own, others, len(status["replicas"]["others"])


async def all_count(admin_ports: list[int], heard: int, total: int | None) -> list[int]:
    """Waits until all of these hear so many others and agree on how much there is; what each has itself."""
    async with asyncio.timeout(60):
        while True:
            found = [await asyncio.to_thread(counts, port) for port in admin_ports]
            if all(n == heard and (total is None or own + others == total) for own, others, n in found):
                return [own for own, _, _ in found]
            await asyncio.sleep(0.1)


async def ask(session: aiohttp.ClientSession, url: str) -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": 30_000, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200
        async for _ in answer.content.iter_any():
            pass


@pytest.mark.faults
async def test_stopped_continued_and_killed(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "r"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    engine = start("engine", "--kind", "sim", "--port", "0", "--model", "m", "--profile", "h100/llama-8b")
    engine_url = engine.url("engine sim serves")
    port = free_ports(COUNT + 1)
    admin_ports = [port + 1 + number for number in range(COUNT)]
    arguments = ("--engine", engine_url, "--port", str(port), "--admin-port", str(port + 1))
    front = start("serve", *arguments, "--processes", str(COUNT))
    for _ in range(COUNT):
        await asyncio.to_thread(front.url, "listening on")
    await all_count(admin_ports, COUNT - 1, 0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), timeout=timeout) as session:
        asked = [asyncio.create_task(ask(session, f"http://127.0.0.1:{port}")) for _ in range(STREAMS)]
        own = await all_count(admin_ports, COUNT - 1, STREAMS)
        busy = own.index(max(own))
        others = [one for one in admin_ports if one != admin_ports[busy]]
        pid = await asyncio.to_thread(pid_at, front, admin_ports[busy])
        os.kill(pid, signal.SIGSTOP)
        await all_count(others, COUNT - 2, STREAMS - own[busy])
        os.kill(pid, signal.SIGCONT)
        await all_count(admin_ports, COUNT - 1, STREAMS)
        os.kill(pid, signal.SIGKILL)
        await all_count(others, COUNT - 1, STREAMS - own[busy])  # another one is there instead, with nothing
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await all_count(admin_ports, COUNT - 1, 0)
    assert list(runtime.glob("pointsman/*.bus")) or len(os.fsencode(runtime)) > 60
    assert front.stop(signal.SIGTERM) == 0
    assert not list(runtime.glob("pointsman/*.bus"))


def pid_at(front: Any, port: int) -> int:
    """Of the front end whose admin port it is: its process tells its number to the others as part of its name."""
    children = [process.pid for process in front.family() if process.pid != front.process.pid]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=60) as answer:
        heard = [int(other["name"].rpartition("/")[2]) for other in json.load(answer)["replicas"]["others"]]
    (mine,) = set(children) - set(heard)
    return mine
