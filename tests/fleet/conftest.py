"""`pointsman up` with two models on this computer, started once for all tests of this folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pointsman.app.cli.model_places import model_places
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL

START_LIMIT_S = 300
STOP_LIMIT_S = 60
FIRST, SECOND = "first", "second"


@dataclass(frozen=True)
class UpFleet:
    """A running fleet."""

    url: str
    admin_url: str
    process: subprocess.Popen[str]

    def status(self) -> dict[str, Any]:
        """The status document."""
        with urllib.request.urlopen(f"{self.admin_url}/v1/status", timeout=60) as answer:
            return json.loads(answer.read())

    def engine_url(self, worker: str) -> str:
        """Where a worker's engine listens."""
        return next(w["url"] for w in self.status()["workers"] if w["id"] == worker)

    def running(self) -> int:
        """Requests in flight, by the front end's own count."""
        requests = self.status()["requests"]
        return requests["running"] + requests["waiting"]


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The model that `up` serves by itself, brought here if it is not."""
    return asyncio.run(resolve(DEFAULT_MODEL, model_places(os.environ), lambda progress: None)).path


@pytest.fixture(scope="session")
def up_fleet(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[UpFleet]:
    """Two engines of each of two models (the same file under two names)."""
    folder = tmp_path_factory.mktemp("up")
    config = folder / "pointsman.yaml"
    config.write_text("control-plane: {debug_headers: true, listen_port: 0, admin_port: 0, heartbeat_interval: 1s}\n")
    command = [sys.executable, "-m", "pointsman.app.cli.main", "up", "--config", str(config)]
    command += ["--model", f"{FIRST}={model_path}", "--model", f"{SECOND}={model_path}"]
    environment = os.environ | {"COLUMNS": "200"}
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    said: list[str] = []
    with process:
        try:
            yield UpFleet(*_urls(process, said), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_LIMIT_S) == 0, "".join(said)
        finally:
            process.kill()


def _urls(process: subprocess.Popen[str], said: list[str]) -> tuple[str, str]:
    """Read what it says until it shows how it is called; go on reading behind the tests' back."""
    killer = threading.Timer(START_LIMIT_S, process.kill)
    killer.start()
    url = admin_url = ""
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if "front end listens at" in line:
            words = line.replace(",", "").split()
            url, admin_url = words[words.index("at") + 1], words[-1]
        if "Ctrl-C" in line:
            break
    killer.cancel()
    assert url, f"up did not start:\n{''.join(said)}"
    threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True).start()
    _wait_until_all_usable(admin_url)
    return url, admin_url


def _wait_until_all_usable(admin_url: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{admin_url}/v1/status", timeout=60) as answer:
            workers = json.loads(answer.read())["workers"]
        if len(workers) == 4 and all(worker["state"] == "ready" for worker in workers):
            return
        time.sleep(0.1)
    raise AssertionError(f"not all engines became ready: {workers}")
