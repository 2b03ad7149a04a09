"""The scripts' own logic, in a copy of theirs with stand-ins for Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
echo "$@" >>{log}
case "$*" in
  *ensurepip*) exit {ensurepip} ;;
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *version_info\\[*) echo 3.11 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("a")
    (tmp_path / "constraints.txt").write_text("b")
    return tmp_path


def python(checkout: Path, ensurepip: int = 0) -> Path:
    """A program that says it is a new Python, and writes down how it is called."""
    program = checkout / "stand-in"
    program.write_text(PYTHON.format(log=checkout / "log", ensurepip=ensurepip))
    program.chmod(0o755)
    return program


def sh(checkout: Path, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


NEED = "set -euo pipefail; . scripts/_venv; need test"


def installs(checkout: Path) -> int:
    return sum(" pip install " in line for line in (checkout / "log").read_text().splitlines())


def test_installs_once_and_again_when_something_changed(checkout: Path) -> None:
    program = str(python(checkout))
    first = sh(checkout, NEED, PYTHON=program)
    assert first.returncode == 0, first.stderr
    assert "making .venv" in first.stderr
    assert "installing pointsman[test]" in first.stderr
    assert installs(checkout) == 1
    again = sh(checkout, NEED, PYTHON=program)
    assert (again.returncode, again.stderr, installs(checkout)) == (0, "", 1)
    (checkout / "constraints.txt").write_text("c")
    assert sh(checkout, NEED, PYTHON=program).returncode == 0
    assert installs(checkout) == 2
    assert "installing pointsman[lint]" in sh(checkout, NEED + " lint", PYTHON=program).stderr
    assert ".[test]" in (checkout / "log").read_text()


def test_one_line_when_venv_is_missing(checkout: Path) -> None:
    done = sh(checkout, NEED, PYTHON=str(python(checkout, ensurepip=1)))
    assert done.returncode == 1
    assert done.stderr == (
        "pointsman: this Python has no venv module; install it, for example: apt install python3.11-venv\n"
    )


def test_one_line_when_python_is_too_old_or_absent(checkout: Path) -> None:
    done = sh(checkout, NEED, PYTHON="/bin/false")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "PYTHON=/bin/false is no Python 3.11 or newer" in done.stderr
    (checkout / "bin").mkdir()
    for name in ("bash", "cat", "cksum"):
        (checkout / "bin" / name).symlink_to(shutil.which(name) or name)
    none = sh(checkout, NEED, PATH=str(checkout / "bin"))
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert "found none" in none.stderr


def test_bench_lists_and_refuses(checkout: Path) -> None:
    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks" / "relay.py").touch()
    (checkout / "benchmarks" / "_shared.py").touch()
    assert sh(checkout, "scripts/bench").stdout == "relay\n"
    done = sh(checkout, "scripts/bench none-such")
    assert (done.returncode, done.stderr) == (
        1,
        "pointsman: no benchmark is called none-such; scripts/bench lists them\n",
    )


@pytest.mark.parametrize("name", ["_venv", "up", "test", "lint", "bench", "pin"])
def test_syntax(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / "scripts" / name)], check=False).returncode == 0


def test_constraints_pin_all_that_is_needed_and_name_no_host() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and "/" not in line for line in pins)
    names = {line.partition("==")[0].lower().replace("_", "-") for line in pins}
    assert {"aiohttp", "msgspec", "xllamacpp", "pytest", "mypy", "ruff", "import-linter"} <= names
    assert sys.version_info >= (3, 11)
