"""Front ends are replaced one by one under load, and no request notices: new connections, kept ones, streams."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from pointsman.app.cli import main
from support.free_ports import free_ports

Start = Callable[..., Any]
TOKENS = 40


class Crowd:
    """Clients that ask without a pause until they are told to stop. Nobody tries anything again."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/v1/completions"
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        kinds = {"new connections": 4, "kept": 4, "streams": 4}
        for kind, count in kinds.items():
            self._tasks += [asyncio.create_task(self._ask(kind)) for _ in range(count)]

    async def end(self) -> None:
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    async def _ask(self, kind: str) -> None:
        connector = aiohttp.TCPConnector(force_close=kind == "new connections")
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._stop.is_set():
                try:
                    await asyncio.wait_for(self._one(session, streams=kind == "streams"), 30)
                    self.done[kind] += 1
                except Exception as error:
                    self.failed.append(f"{kind}: {error!r}")
                await asyncio.sleep(0.002)

    async def _one(self, session: aiohttp.ClientSession, *, streams: bool) -> None:
        body = {"model": "m", "prompt": "x", "max_tokens": TOKENS if streams else 1, "stream": streams}
        async with session.post(self.url, json=body) as answer:
            text = await answer.text()
        assert answer.status == 200, f"{answer.status} {text}"
        if streams:
            assert text.endswith("data: [DONE]\n\n"), text[-200:]
            assert text.count('"text"') == TOKENS, text.count('"text"')

    async def until_done(self, more: int) -> None:
        """So many more requests of each kind were answered."""
        wanted = {kind: self.done[kind] + more for kind in ("new connections", "kept", "streams")}
        async with asyncio.timeout(60):
            while any(self.done[kind] < count for kind, count in wanted.items()):
                await asyncio.sleep(0.02)


async def line_of(front: Any, part: str) -> str:
    line: str = await asyncio.to_thread(front.line, part)
    return line


@pytest.fixture
def engine(start: Start) -> str:
    arguments = ("--kind", "sim", "--port", "0", "--model", "m", "--profile", "a100/llama-8b")
    url: str = start("engine", *arguments).url("engine sim serves")
    return url


@pytest.mark.faults
async def test_replaced_three_times_under_load_no_request_fails(
    start: Start, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    port = free_ports(3)
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--engine", engine, *ports, "--processes", "2")
    for _ in range(2):
        await line_of(front, "listening on")
    first = {process.pid for process in front.family()}
    crowd = Crowd(f"http://127.0.0.1:{port}")
    crowd.begin()
    await crowd.until_done(5)
    for how in ("SIGHUP", "admin port", "command"):
        if how == "SIGHUP":
            front.process.send_signal(signal.SIGHUP)
        elif how == "admin port":
            await asyncio.to_thread(post, f"http://127.0.0.1:{port + 1}/v1/rollover")
        else:
            arguments = ["reload", "--roll-over", "--admin-url", f"http://127.0.0.1:{port + 2}"]
            assert await asyncio.to_thread(main.run, arguments) == 0
            assert "replaced one by one" in capsys.readouterr().out
        await line_of(front, "all front ends are replaced")
        await crowd.until_done(5)
    await crowd.end()
    assert crowd.failed == []
    assert min(crowd.done.values()) >= 15

    async with asyncio.timeout(60):  # the old ones end once their connections are gone
        while len(front.family()) > 3:
            await asyncio.sleep(0.05)
    assert {process.pid for process in front.family()} & first == {front.process.pid}
    assert front.stop(signal.SIGTERM) == 0
    assert front.family() == []


async def test_one_that_cannot_start_leaves_the_others_as_they_are(start: Start, engine: str, tmp_path: Path) -> None:
    port = free_ports(3)
    file = tmp_path / "c.yaml"
    logs = tmp_path / "logs"
    good = f"execution-group: {{nodes: [{{url: '{engine}'}}]}}\n"
    file.write_text(good)
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--config", str(file), *ports, "--processes", "2")
    for _ in range(2):
        await line_of(front, "listening on")
    before = {process.pid for process in front.family()}
    file.write_text(good + "routing: {polycy: kv}\n")
    front.process.send_signal(signal.SIGHUP)
    refusal = await line_of(front, "is refused, nothing changes")
    assert "c.yaml:2: routing.polycy: unknown key; did you mean policy?" in refusal
    file.write_text(good + "routing: {policy: nonsense}\n")
    front.process.send_signal(signal.SIGHUP)
    await line_of(front, "replacing front end 1 failed: it ended with status 2")
    assert policy_at(port + 2) == "auto"
    logs.write_text("no folder")
    file.write_text(good + f"decision-log: {{path: {logs}/x.jsonl}}\n")
    front.process.send_signal(signal.SIGHUP)
    await line_of(front, "replacing front end 1 failed: it ended with status 2")
    assert {process.pid for process in front.family()} == before
    file.write_text(good)
    front.process.send_signal(signal.SIGHUP)
    await line_of(front, "all front ends are replaced")
    assert front.stop(signal.SIGTERM) == 0


async def test_a_killed_front_end_loses_no_connection_that_waits(start: Start, engine: str) -> None:
    """Its socket is the supervisor's: who connects meanwhile waits for the next one, and is not refused."""
    port = free_ports(3)
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--engine", engine, *ports, "--processes", "2")
    for _ in range(2):
        await line_of(front, "listening on")
    children = [process for process in front.family() if process.pid != front.process.pid]
    for child in children:
        child.suspend()
    body = {"model": "m", "prompt": "x", "max_tokens": 1}
    url = f"http://127.0.0.1:{port}/v1/completions"
    with ThreadPoolExecutor(8) as threads:
        asked = [asyncio.get_running_loop().run_in_executor(threads, post, url, body) for _ in range(8)]
        async with asyncio.timeout(60):  # they wait in the queues of both
            while connections_to(port) < len(asked):
                await asyncio.sleep(0.02)
        for child in children:
            child.kill()
        for _ in range(2):
            await line_of(front, "starting it again")
        assert await asyncio.wait_for(asyncio.gather(*asked), 60) == [200] * 8
    assert front.stop(signal.SIGTERM) == 0


def connections_to(port: int) -> int:
    """How many this process has."""
    found = psutil.Process().net_connections()
    return sum(bool(c.raddr) and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in found)


def post(url: str, body: object = None) -> int:
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=50) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def policy_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/policies", timeout=60) as answer:
        return str(json.load(answer)["policy"])


@pytest.mark.faults
async def test_a_new_front_end_knows_engines_that_registered_themselves(start: Start, engine: str) -> None:
    """They are known to the others only, who tell it before it takes anybody's place."""
    port = free_ports(3)
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--wait-for-engines", *ports, "--processes", "2")
    for _ in range(2):
        await line_of(front, "listening on")
    node = {"url": engine, "name": "e", "kind": "vllm"}
    assert await asyncio.to_thread(post, f"http://127.0.0.1:{port + 1}/v1/workers", node) in (200, 201)
    url = f"http://127.0.0.1:{port}"
    async with asyncio.timeout(60):
        for admin_port in (port + 1, port + 2):
            while await asyncio.to_thread(ready_workers, admin_port) != 1:
                await asyncio.sleep(0.02)
    crowd = Crowd(url)
    crowd.begin()
    for _ in range(2):
        front.process.send_signal(signal.SIGHUP)
        await line_of(front, "all front ends are replaced")
        await crowd.until_done(3)
    await crowd.end()
    assert crowd.failed == []
    assert front.stop(signal.SIGTERM) == 0


def ready_workers(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=60) as answer:
        return sum(worker["state"] == "ready" for worker in json.load(answer)["workers"])


@pytest.mark.faults
async def test_a_front_end_that_never_comes_back_keeps_nobody_waiting(
    start: Start, engine: str, tmp_path: Path
) -> None:
    """Its seat is given up after a while, and clients come to the others."""
    port = free_ports(3)
    logs = tmp_path / "logs"
    logs.mkdir()
    file = tmp_path / "c.yaml"
    file.write_text(f"execution-group: {{nodes: [{{url: '{engine}'}}]}}\ndecision-log: {{path: {logs}/d.jsonl}}\n")
    ports = ["--port", str(port), "--admin-port", str(port + 1)]
    front = start("serve", "--config", str(file), *ports, "--processes", "2")
    for _ in range(2):
        await line_of(front, "listening on")
    (child,) = [p for p in front.family() if p.pid != front.process.pid and listens_at(p, port + 1)]
    logs.rename(tmp_path / "away")
    logs.write_text("no folder, so the next one can't start")
    child.kill()
    await line_of(front, "front end 1 is missing for 5 s: clients go to others")
    url, body = f"http://127.0.0.1:{port}/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1}
    assert await asyncio.gather(*(asyncio.to_thread(post, url, body) for _ in range(16))) == [200] * 16
    logs.unlink()
    logs.mkdir()
    async with asyncio.timeout(60):
        while not any(listens_at(p, port + 1) for p in front.family()):
            await asyncio.sleep(0.1)
    assert front.stop(signal.SIGTERM) == 0


def listens_at(process: psutil.Process, port: int) -> bool:
    return any(c.laddr.port == port for c in process.net_connections() if c.status == psutil.CONN_LISTEN)
