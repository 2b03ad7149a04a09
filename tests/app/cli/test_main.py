"""Verbs are found, errors are one line, exit statuses say what happened."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from pointsman import __version__
from pointsman.app.cli import main, version
from pointsman.core.model.errors import ConfigError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["version"]) == 0
    assert capsys.readouterr().out == f"pointsman {__version__}\n"


def test_version_waits_for_nothing_heavy() -> None:
    script = (
        "import sys; from pointsman.app.cli.main import run; run(['version']);"
        "print(sorted({'numpy', 'aiohttp', 'rich', 'uvloop', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_a_terminal_can_not_show_is_no_error() -> None:
    options = ["--make", "chat --arrivals 2 --sessions 2", "--workers", "2", "--profile", "tiny", "--seeds", "1"]
    command = [sys.executable, "-m", "pointsman.app.cli.main", "simulate", *options, "--policy", "random"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" requests, 2 ? tiny, " in done.stdout


def test_every_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    listed = capsys.readouterr().out
    for verb in ("up", "serve", "engine", "status", "policies", "version"):
        assert f"  {verb} " in listed
        assert main.run([verb, "--help"]) == 0
        assert f"Usage: pointsman {verb}" in capsys.readouterr().out


def test_no_verb_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    assert "Verbs:" in capsys.readouterr().err


def test_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["fly"]) == 2
    assert "No such command 'fly'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("c.yaml:3: a\nb"), 2, "pointsman: c.yaml:3: a b\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_errors(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(version, "version", failing)
    assert main.run(["version"]) == status
    assert capsys.readouterr().err.strip("\n") == text.strip("\n")


def test_a_reader_that_left_is_no_traceback() -> None:
    script = (
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1);"
        "from pointsman.app.cli.main import main; sys.argv = ['pointsman', 'version']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
