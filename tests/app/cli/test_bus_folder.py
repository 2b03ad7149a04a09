"""The folder for sockets of front ends that belong together."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from pointsman.app.cli import bus_folder as module
from pointsman.app.cli.bus_folder import bus_folder
from pointsman.core.model.errors import ConfigError


def binds(folder: Path) -> None:
    """A socket with the longest name that a front end's can have fits in."""
    path = folder / "4194304.sock"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    path.unlink()


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps the folder for temporary files that it found first."""
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_in_the_runtime_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        left = Path(runtime, f"{os.getpid()}.bus")
        left.mkdir()
        (left / "77.sock").touch()  # of one that was killed and had our number
        with bus_folder(Path(runtime)) as folder:
            assert folder == left
            assert not list(folder.iterdir())
            assert folder.stat().st_mode & 0o777 == 0o700
            binds(folder)
        assert not left.exists()


@pytest.mark.parametrize("runtime", [True, False])
def test_where_the_folders_that_are_named_are_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: bool
) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    with bus_folder(deep if runtime else None) as folder:
        assert deep not in folder.parents
        binds(folder)
    assert not folder.exists()


def test_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr(module, "_SHORT", (str(tmp_path / "absent"),))
    with pytest.raises(ConfigError, match="name one in XDG_RUNTIME_DIR or TMPDIR"), bus_folder(None):
        pass
