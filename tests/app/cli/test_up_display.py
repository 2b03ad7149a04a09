"""What is said while something is fetched, without a terminal."""

from __future__ import annotations

import shutil
import sys

import pytest

from pointsman.app.cli.up_display import Display
from pointsman.app.cli.up_text import how_to_call, own_command
from pointsman.edge.engines.local.progress import Progress


def test_a_download_says_something_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.progress(Progress("waiting"))
        for done_bytes in range(0, 1001):
            display.progress(Progress("downloading m.gguf", done_bytes, 1000))
        display.say("done")
    lines = [line.partition(" s  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == "waiting"
    assert lines[1:-1] == [f"downloading m.gguf: {percent} %" for percent in range(10, 101, 10)]
    assert lines[-1] == "done"


@pytest.mark.parametrize(
    ("on_path", "started_as", "command"),
    [
        (True, ".venv/bin/pointsman", "pointsman"),
        (False, ".venv/bin/pointsman", ".venv/bin/pointsman"),
        (False, "somewhere/main.py", "python -m pointsman.app.cli.main"),
    ],
)
def test_own_command(monkeypatch: pytest.MonkeyPatch, on_path: bool, started_as: str, command: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if on_path else None)
    monkeypatch.setattr(sys, "argv", [started_as])
    assert own_command() == command


def test_what_to_paste() -> None:
    text = how_to_call("http://127.0.0.1:8080", "http://127.0.0.1:9", "it's m")
    assert "curl http://127.0.0.1:8080/v1/chat/completions" in text
    assert 'base_url="http://127.0.0.1:8080/v1"' in text
    assert "pointsman status --admin-url http://127.0.0.1:9" in text
    assert "--admin-url" not in how_to_call("http://a:1", "http://127.0.0.1:8081", "m")
    snippet = text.partition("from openai")[2].partition("What it does")[0]
    compile(
        "import openai\nfrom openai" + "\n".join(line.removeprefix("  ") for line in snippet.splitlines()), "s", "exec"
    )
