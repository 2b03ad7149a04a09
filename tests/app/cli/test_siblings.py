"""The file that says which front ends belong together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pointsman.app.cli.siblings import SiblingsFile, front_ends_with, runtime_folder
from pointsman.core.model.errors import ConfigError

URLS = ["http://127.0.0.1:8081", "http://127.0.0.1:8082"]


def test_where_it_is() -> None:
    assert runtime_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/pointsman")
    assert runtime_folder({}).name == f"pointsman-{os.getuid()}"


def test_each_finds_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "pointsman"
    file = SiblingsFile(folder)
    assert front_ends_with(URLS[0], folder) == [URLS[0]]
    file.write(URLS)
    assert front_ends_with("http://localhost:8082/", folder) == ["http://localhost:8082/", URLS[0]]
    for other in ("http://127.0.0.1:8083", "http://10.0.0.1:8081", "nonsense", "http://[", "http://a:99999"):
        assert front_ends_with(other, folder) == [other]
    file.close()
    assert front_ends_with(URLS[0], folder) == [URLS[0]]
    assert list(folder.iterdir()) == []


def test_what_a_killed_one_left_behind_is_not_believed_and_goes(tmp_path: Path) -> None:
    (tmp_path / "1.lock").touch()
    (tmp_path / "1.json").write_text('["http://127.0.0.1:8081", "http://127.0.0.1:9999"]')
    assert front_ends_with(URLS[0], tmp_path) == [URLS[0]]
    SiblingsFile(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_what_is_no_list_is_none(tmp_path: Path, text: str) -> None:
    file = SiblingsFile(tmp_path)
    (tmp_path / f"{os.getpid()}.json").write_text(text)
    assert front_ends_with(URLS[0], tmp_path) == [URLS[0]]
    file.close()


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(
        ConfigError, match="is not a folder of this user alone; correct it, or name another folder in XDG"
    ):
        SiblingsFile(tmp_path)
    assert front_ends_with(URLS[0], tmp_path) == [URLS[0]]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        SiblingsFile(tmp_path / "file" / "pointsman")
