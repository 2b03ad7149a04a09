"""What signals do to `pointsman serve`: read the configuration again, stop when all has ended, stop now."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pointsman.app.cli import main
from pointsman.app.cli.seats import take_seat
from pointsman.app.cli.signals import Signals
from pointsman.core.model.errors import EngineError
from support.free_ports import free_ports

Start = Callable[..., Any]


class Served:
    """`pointsman serve --config` before a simulated engine that takes its time."""

    def __init__(self, start: Start, folder: Path) -> None:
        arguments = ("--kind", "sim", "--port", "0", "--model", "m", "--profile", "a100/llama-8b")
        self.engine = start("engine", *arguments)
        engine = self.engine.url("engine sim serves")
        self.file = folder / "c.yaml"
        self.good = f"execution-group: {{nodes: [{{url: '{engine}', name: e}}]}}\n"
        self.file.write_text(self.good)
        self.front = start("serve", "--config", str(self.file), "--port", "0", "--admin-port", "0")
        line = self.front.line("pointsman serves")
        self.url, self.admin = line.split()[2].removesuffix("/v1"), line.split("admin: ")[1].split(";")[0]

    async def line(self, part: str) -> str:
        line: str = await asyncio.to_thread(self.front.line, part)
        return line

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while await asyncio.to_thread(status_of, f"{self.url}/ready") != 200:
                await asyncio.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.front.process.send_signal(number)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def served(start: Start, tmp_path: Path) -> Served:
    return Served(start, tmp_path)


async def test_hang_up_reads_the_file_again(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    await served.ready()
    served.file.write_text(served.good + "control-plane: {debug_headers: true, listen_port: 9}\n")
    served.signal(signal.SIGHUP)
    await served.line("was read again (SIGHUP); changed: control-plane.debug_headers")
    served.file.write_text(served.good + "control-plane: {debug_headers: 7}\n")
    served.signal(signal.SIGHUP)
    assert "c.yaml:2: control-plane.debug_headers" in await served.line("is refused, nothing changes")
    assert await asyncio.to_thread(main.run, ["reload", "--admin-url", served.admin]) == 2
    assert "c.yaml:2: control-plane.debug_headers" in capsys.readouterr().err
    served.file.write_text("")  # as an editor leaves it for a moment
    served.signal(signal.SIGHUP)
    await served.line("is refused, nothing changes: no engines: give")
    await served.ready()
    served.file.write_text(served.good + "control-plane: {admin_host: localhost}\n")
    assert await asyncio.to_thread(main.run, ["reload", "--admin-url", served.admin]) == 0
    said = capsys.readouterr().out
    assert "changed: control-plane.debug_headers" in said
    assert "needs a restart (or --roll-over): control-plane.admin_host" in said
    assert await asyncio.to_thread(main.run, ["reload", "--roll-over", "--admin-url", served.admin]) == 2
    assert "is the only one here" in capsys.readouterr().err
    assert await asyncio.to_thread(served.front.stop, signal.SIGTERM) == 0


async def stream(url: str, tokens: int, begun: asyncio.Event) -> str:
    body = {"model": "m", "prompt": "x", "max_tokens": tokens, "stream": True}
    text = ""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", json=body) as answer:
        async for piece in answer.content.iter_any():
            text += piece.decode()
            begun.set()
    return text


@pytest.mark.parametrize("hurried", [False, True])
async def test_told_to_stop_it_ends_with_its_streams_or_cuts_them_when_told_again(
    served: Served, hurried: bool
) -> None:
    await served.ready()
    begun = asyncio.Event()
    running = asyncio.create_task(stream(served.url, 20_000 if hurried else 150, begun))
    await asyncio.wait_for(begun.wait(), 60)
    served.engine.process.send_signal(signal.SIGSTOP)  # however fast the machine is, the stream does not end yet
    served.signal(signal.SIGTERM)
    await served.line("stopping (again to stop at once)")
    async with asyncio.timeout(60):
        while await asyncio.to_thread(status_of, f"{served.url}/ready") != 503:
            await asyncio.sleep(0.01)
    if hurried:
        served.signal(signal.SIGTERM)
    else:
        served.engine.process.send_signal(signal.SIGCONT)
    text = await asyncio.wait_for(running, 60)
    if hurried:
        last = json.loads(text.strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "stream_broken"
        assert "the front end is stopping" in last["error"]["message"]
    else:
        assert text.endswith("data: [DONE]\n\n")
    assert await asyncio.to_thread(served.front.process.wait, 60) == 0


def test_only_a_closed_terminal_makes_hang_up_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = [True]

    def fake_open(path: str, flags: int) -> int:
        if not opened[0]:
            raise OSError(6, "no such device or address")
        return real("/dev/null", os.O_RDONLY)

    real = os.open
    monkeypatch.setattr(os, "open", fake_open)
    signals = Signals()
    assert not signals.hung_up()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    under_nohup = Signals()
    signal.signal(signal.SIGHUP, before)
    opened[0] = False
    assert signals.hung_up()
    assert not under_nohup.hung_up()
    assert not Signals().hung_up()  # it never had one


def test_seats_share_the_client_port_and_nothing_else() -> None:
    first = take_seat("127.0.0.1", 0, "127.0.0.1", 0)
    port, admin = first.client[0].getsockname()[1], first.admin[0].getsockname()[1]
    first.admin[0].listen()
    second = take_seat("127.0.0.1", port, "127.0.0.1", 0)
    with pytest.raises(EngineError, match=rf"can't listen on 127\.0\.0\.1:{admin}: .* choose another --admin-port"):
        take_seat("127.0.0.1", port, "127.0.0.1", admin)
    with pytest.raises(EngineError, match="choose another --port"):
        take_seat("203.0.113.7", port, "127.0.0.1", 0)
    local = take_seat("localhost", 0, "localhost", 0)
    assert len({sock.getsockname()[1] for sock in local.client}) == 1
    for seat in (first, second, local):
        seat.close()


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_service_manager_that_stops_every_process_cuts_no_stream(
    start: Start, tmp_path: Path, hurried: bool
) -> None:
    """systemd sends SIGTERM to all of a service, and the supervisor tells its front ends the same once more."""
    served = Served(start, tmp_path)
    port = free_ports(3)
    front = start(
        "serve", "--config", str(served.file), "--port", str(port), "--admin-port", str(port + 1), "--processes", "2"
    )
    for _ in range(2):
        await asyncio.to_thread(front.line, "listening on")
    begun = asyncio.Event()
    running = asyncio.create_task(stream(f"http://127.0.0.1:{port}", 20_000 if hurried else 200, begun))
    await asyncio.wait_for(begun.wait(), 60)
    for process in front.family():
        process.send_signal(signal.SIGTERM)
    if hurried:  # and the person behind it loses patience
        for _ in range(2):
            await asyncio.to_thread(front.line, "stopping (again to stop at once)")
        await asyncio.sleep(0.5)  # the supervisor, too, has seen the first one; two that wait would be one
        front.process.send_signal(signal.SIGTERM)
    text = await asyncio.wait_for(running, 60)
    assert ("the front end is stopping" in text) if hurried else text.endswith("data: [DONE]\n\n")
    assert await asyncio.to_thread(front.process.wait, 60) == 0
