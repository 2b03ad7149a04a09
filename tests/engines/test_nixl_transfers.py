"""Embedded engines whose KV moves over NIXL, in the environment that has its package."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.engines

_SOURCES = Path(__file__).parents[2] / "src"
_START = """
import sys
sys.path.insert(0, {sources!r})
sys.path.append({packages!r})
from pointsman.app.cli.main import main
sys.argv[0] = "pointsman"
main()
"""
IDLE_S = 3.0
WORDS = "the river and the old man who said that his work was good " * 30


@pytest.fixture(scope="module")
def python() -> str:
    """With NIXL."""
    found = os.environ.get("POINTSMAN_ENGINES_PYTHON")
    if not found:
        pytest.skip("POINTSMAN_ENGINES_PYTHON is not set; scripts/test-engines sets it")
    if subprocess.run([found, "-c", "import nixl"], check=False, capture_output=True).returncode:
        pytest.skip(f"nixl is not installed for {found}: pip install --no-deps nixl nixl-cu12")
    return found


@contextlib.contextmanager
def engine(python: str, *arguments: str) -> Iterator[str]:
    """URL of one that runs."""
    script = _START.format(sources=str(_SOURCES), packages=sysconfig.get_paths()["purelib"])
    process = subprocess.Popen(
        [python, "-c", script, "engine", "--kind", "embedded", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert " at http" in line, line
        yield line.split(" at ")[1].split()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        with process.stdout:
            process.stdout.read()
        process.wait(30)


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps({"prompt": WORDS, "temperature": 0, **body}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", data=data, timeout=60) as answer:
        return dict(json.load(answer))


def info(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/kv/info", timeout=60) as answer:
        return dict(json.load(answer))


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def moved(prefill: str, decode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was told of the transfer, and the choices."""
    first = ask(prefill, {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})
    answer = ask(decode, {"max_tokens": 8, "kv_transfer_params": first["kv_transfer_params"]})
    return answer["kv_transfer_params"]["pointsman_transfer"], answer["choices"]


def test_kv_moves_over_nixl_and_answers_are_the_same(python: str) -> None:
    with engine(python, "--kv-transport", "nixl") as p, engine(python, "--kv-transport", "nixl") as d:
        assert info(p)["transports"] == ["nixl"]
        told, choices = moved(p, d)
        assert told["transport"] == "nixl"
        assert told["transferred_tokens"] > 100
        assert "failure" not in told
        assert choices == ask(p, {"max_tokens": 8})["choices"]
        # And once more, over what is connected already, the other way round.
        told, _ = moved(d, p)
        assert "failure" not in told
        # Both do nothing now, and take little of a core for it.
        both = [child for child in psutil.Process().children() if child.cmdline()[-2:] == ["--kv-transport", "nixl"]]
        assert len(both) == 2
        before_s = [cpu_s(process) for process in both]
        time.sleep(IDLE_S)
        for process, spent_s in zip(both, before_s, strict=True):
            assert cpu_s(process) - spent_s < IDLE_S / 4


def test_nixl_comes_first_and_its_absence_is_no_obstacle(python: str) -> None:
    with engine(python) as both, engine(python, "--kv-transport", "tcp") as plain:
        assert info(both)["transports"] == ["nixl", "shm", "tcp"]
        told, choices = moved(plain, both)
        assert told["transport"] == "tcp"
        assert choices == ask(plain, {"max_tokens": 8})["choices"]
