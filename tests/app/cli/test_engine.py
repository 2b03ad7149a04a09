"""`pointsman engine`: what is refused, and a simulated engine as a process."""

from __future__ import annotations

import dataclasses
import json
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from pointsman.app.cli import main
from pointsman.app.cli.engine import engine
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from pointsman.edge.engines.sim.settings import SimSettings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kind", "embedded", "--slots", "2"],
            "pointsman: --slots: engines of kind embedded don't take it; remove it",
        ),
        (
            ["--kind", "embedded", "--port", "0", "--model", "seed:x"],
            "pointsman: --model seed:x: 'x' is no number; write for example seed:0",
        ),
        (
            ["--kind", "embedded", "--port", "0", "--model", "/absent"],
            "pointsman: --model /absent: there is no such file or directory; give a directory with config.json and "
            "safetensors, a GGUF file, or seed:N for a tiny model made from the number N",
        ),
        (
            ["--kind", "embedded", "--port", "0", "--block-size", "24"],
            "pointsman: block_size is 24: it must divide 64",
        ),
        (
            ["--kind", "embedded", "--port", "0", "--max-model-len", "9000"],
            "pointsman: max_model_len is 9000, and the model knows 8192 positions; lower it",
        ),
        (["--kind", "sim", "--threads", "2"], "pointsman: --threads: engines of kind sim don't take it; remove it"),
        (
            ["--kind", "local", "--kv-events", "x"],
            "pointsman: --kv-events: engines of kind local don't take it; remove it",
        ),
        (["--kind", "sim", "--speedup", "0", "--port", "0"], "pointsman: speedup must be above 0, not 0"),
        (["--kind", "local", "--model", "/absent.gguf"], "pointsman: /absent.gguf: there is no such file"),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["engine", *arguments]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sim_serves_until_told_to_stop(start: Callable[..., Any], number: signal.Signals) -> None:
    engine = start("engine", "--kind", "sim", "--port", "0", "--model", "m")
    url = engine.url("engine sim serves m at")
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        assert json.load(answer)["data"][0]["id"] == "m"
    assert engine.stop(number) == 0
    assert engine.family() == []


def test_embedded_serves_until_told_to_stop(start: Callable[..., Any]) -> None:
    engine = start("engine", "--kind", "embedded", "--port", "0", "--served-name", "tiny", "--model", "seed:3")
    url = engine.url("engine embedded serves tiny at")
    body = json.dumps({"prompt": "the river", "max_tokens": 4, "ignore_eos": True, "temperature": 0}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", data=body, timeout=30) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4
    assert engine.stop(signal.SIGINT) == 0
    assert engine.family() == []


def test_a_taken_port_is_one_line(start: Callable[..., Any]) -> None:
    port = start("engine", "--kind", "sim", "--port", "0").url("engine sim serves").rpartition(":")[2]
    second = start("engine", "--kind", "sim", "--port", port)
    assert f"can't listen on 127.0.0.1:{port}" in second.line("pointsman: ")
    assert second.process.wait(30) == 2


def test_every_setting_of_an_engine_of_ours_is_an_option() -> None:
    options = {parameter.name for parameter in engine.params}
    for settings in (SimSettings, EmbeddedSettings):
        assert {field.name for field in dataclasses.fields(settings)} - {"transfer"} <= options
