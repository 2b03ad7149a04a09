"""`pointsman up` and `pointsman engine --kind local` with real llama.cpp engines."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pointsman.app.cli import main

pytestmark = pytest.mark.local
Start = Callable[..., Any]
NAME = "SmolLM2-135M-Instruct"


def chat(url: str, model: str) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        loaded: dict[str, Any] = json.load(answer)
    return loaded


def test_two_models_a_killed_engine_and_ctrl_c(start: Start, real_model: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    models = ["--model", f"{NAME}={real_model}", "--model", f"other={real_model}"]
    fleet = start("up", *models, "--engines-per-model", "1", "--port", "0", "--admin-port", "0")
    url = fleet.url("front end listens at")
    assert f"first routed token of {NAME}" in fleet.line("first routed token")
    assert "first routed token of other" in fleet.line("first routed token")
    assert time.monotonic() - began < 60
    assert url in fleet.line("curl http")
    fleet.line("Ctrl-C stops everything")
    for model in (NAME, "other"):
        answer = chat(url, model)
        assert answer["model"] == model
        assert answer["usage"]["completion_tokens"] >= 1

    engines = [process for process in fleet.family() if process.pid != fleet.process.pid]
    assert len(engines) == 2
    engines[0].send_signal(signal.SIGKILL)
    fleet.line("was killed by signal 9; starting it again")
    fleet.line("is ready at")
    assert fleet.stop() == 0
    assert fleet.family() == []
    assert {path.name for path in tmp_path.glob(".pointsman/logs/*/*.log")} == {f"{NAME}-1.log", "other-1.log"}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("model SmolLM2", signal.SIGINT),
        ("starting 2 engines", signal.SIGINT),
        ("is ready at", signal.SIGINT),
        ("front end listens", signal.SIGINT),
        ("first routed token", signal.SIGTERM),
    ],
)
def test_interrupted_at_any_moment(start: Start, real_model: Path, moment: str, number: signal.Signals) -> None:
    fleet = start("up", "--model", str(real_model), "--port", "0", "--admin-port", "0")
    fleet.line(moment)
    assert fleet.stop(number) == 0
    assert fleet.family() == []


def test_a_killed_supervisor_leaves_no_engine(start: Start, real_model: Path) -> None:
    fleet = start("up", "--model", str(real_model), "--port", "0", "--admin-port", "0")
    fleet.line("is ready at")
    fleet.process.kill()
    fleet.process.wait(30)
    deadline = time.monotonic() + 30
    while fleet.family() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert fleet.family() == []


def test_a_taken_port_is_said_before_anything_loads(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main.run(["up", "--port", port, "--admin-port", "0"]) == 2
        assert capsys.readouterr().err == (
            f"pointsman: can't listen on 127.0.0.1:{port}: Address already in use; choose another --port\n"
        )
        assert main.run(["up", "--admin-port", port, "--port", "0"]) == 2
        assert "choose another --admin-port" in capsys.readouterr().err


def test_two_models_need_two_names(real_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["--model", str(real_model), "--model", str(real_model)]
    assert main.run(["up", *models, "--port", "0", "--admin-port", "0"]) == 2
    assert "two models are called" in capsys.readouterr().err


def test_one_engine(start: Start, real_model: Path) -> None:
    engine = start(
        "engine", "--kind", "local", "--model", f"m={real_model}", "--port", "0", "--slots", "2", "--threads", "1"
    )
    url = engine.url("engine local serves m at")
    with urllib.request.urlopen(f"{url}/props", timeout=30) as answer:
        assert json.load(answer)["total_slots"] == 2
    assert chat(url, "m")["model"] == "m"
    assert engine.stop() == 0
    assert engine.family() == []


def test_a_file_that_llama_cannot_load(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not really")
    fleet = start("up", "--model", "bad.gguf", "--port", "0", "--admin-port", "0")
    assert "engine bad-" in fleet.line("pointsman: engine")
    assert fleet.process.wait(30) == 2
    assert fleet.family() == []
