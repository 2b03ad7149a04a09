"""Files of saved slots go when nobody can still be about to read them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.engines.local.saved_slots import KEPT_S, SavedSlots


def written(folder: Path, name: str, at_s: float) -> Path:
    file = folder / name
    file.write_bytes(b"kv")
    os.utime(file, (at_s, at_s))
    return file


def test_old_files_of_ours_are_removed_and_nothing_else(tmp_path: Path) -> None:
    old, new = written(tmp_path, "pointsman-1.bin", 0), written(tmp_path, "pointsman-2.bin", 2)
    foreign = written(tmp_path, "conversation.bin", 0)
    assert SavedSlots(tmp_path, lambda: KEPT_S + 1).sweep() == 1
    assert (old.exists(), new.exists(), foreign.exists()) == (False, True, True)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_directory_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"--slot-save-path .*{name}: expected a directory"):
        SavedSlots(tmp_path / name)


def test_what_can_not_be_removed_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    written(tmp_path, "pointsman-1.bin", 0)

    def refused(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    slots = SavedSlots(tmp_path, lambda: KEPT_S)
    assert (slots.sweep(), slots.sweep()) == (0, 0)
    assert caplog.text.count("saved slots can't be removed: Permission denied") == 1


def test_it_ends_with_its_context(tmp_path: Path) -> None:
    with SavedSlots(tmp_path) as slots:
        assert slots._thread.is_alive()
    assert not slots._thread.is_alive()
