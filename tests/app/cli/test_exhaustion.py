"""`pointsman serve` with few file descriptors: too many clients get 503, the admin port answers, and it recovers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

Start = Callable[..., Any]
DESCRIPTORS = 300
"""Leaves 50 connections."""


@pytest.fixture
def starved(start: Start) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its URL and that of its admin port."""
    engine = start("engine", "--kind", "sim", "--port", "0", "--model", "m").url("engine sim serves")
    command = [sys.executable, "-m", "pointsman.app.cli.main", "serve", "--engine", engine, "--port", "0"]
    script = f'ulimit -n {DESCRIPTORS}; exec "$@"'
    with subprocess.Popen(
        ["bash", "-c", script, "bash", *command, "--admin-port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "pointsman serves" in line)
        url, admin = line.split()[2].removesuffix("/v1"), line.split("admin: ")[1].split(";")[0]
        yield process, url, admin
        process.terminate()
        process.wait(30)


def asked(client: socket.socket) -> str:
    """Status of the answer, or what happened instead."""
    try:
        client.sendall(b"GET /live HTTP/1.1\r\nhost: h\r\n\r\n")
        return client.recv(4096)[9:12].decode() or "closed"
    except OSError as error:
        return type(error).__name__


def status_of(admin: str) -> Any:
    with urllib.request.urlopen(f"{admin}/v1/status", timeout=10) as answer:
        return json.load(answer)


def test_too_many_clients_get_503_and_it_recovers(starved: tuple[subprocess.Popen[str], str, str]) -> None:
    process, url, admin = starved
    port = int(url.rsplit(":", 1)[1])
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(120)]
    answers = Counter(asked(client) for client in crowd)
    assert answers["200"] == 50, answers
    # A connection that is turned away is closed once it has its answer; a late request on it may hit that.
    assert set(answers) <= {"200", "503", "closed", "ConnectionResetError", "BrokenPipeError"}, answers
    assert answers["503"] >= 60, answers
    assert status_of(admin)["workers"][0]["state"] == "ready"
    before_s = sum(psutil.Process(process.pid).cpu_times()[:2])
    time.sleep(0.5)
    assert sum(psutil.Process(process.pid).cpu_times()[:2]) - before_s < 0.25
    for client in crowd:
        client.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            if asked(client) == "200":
                break
    else:
        pytest.fail("it does not recover")
    with urllib.request.urlopen(f"{admin}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    turned = [line for line in text.splitlines() if line.startswith("pointsman_turned_away_total{")]
    assert turned
    assert float(turned[0].split()[1]) >= 60
