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
from pointsman.edge.engines.sim.settings import SimSettings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "embedded"], "pointsman: --kind embedded: not built yet in 0.1; use local or sim"),
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
    assert capsys.readouterr().err.strip() == message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sim_serves_until_told_to_stop(start: Callable[..., Any], number: signal.Signals) -> None:
    engine = start("engine", "--kind", "sim", "--port", "0", "--model", "m")
    url = engine.url("engine sim serves m at")
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        assert json.load(answer)["data"][0]["id"] == "m"
    assert engine.stop(number) == 0
    assert engine.family() == []


def test_a_taken_port_is_one_line(start: Callable[..., Any]) -> None:
    port = start("engine", "--kind", "sim", "--port", "0").url("engine sim serves").rpartition(":")[2]
    second = start("engine", "--kind", "sim", "--port", port)
    assert f"can't listen on 127.0.0.1:{port}" in second.line("pointsman: ")
    assert second.process.wait(30) == 2


def test_every_setting_of_the_simulation_is_an_option() -> None:
    options = {parameter.name for parameter in engine.params}
    settings = {field.name for field in dataclasses.fields(SimSettings)}
    assert settings <= options
