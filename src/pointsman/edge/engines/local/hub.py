"""A known model's file from the Hugging Face hub: its cache on this computer, then a download."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local.gguf import check_known
from pointsman.edge.engines.local.model_spec import KnownModel
from pointsman.edge.engines.local.progress import Progress, ProgressCallback
from pointsman.edge.prompts.hub import HubError, fetch_into, snapshots

_LOCK_POLL_S = 0.25


def cached_files(model: KnownModel, caches: Sequence[Path]) -> list[Path]:
    """Copies in hub caches."""
    return [file for folder in snapshots(model.hub_repository, caches) if (file := folder / model.file).exists()]


async def download(model: KnownModel, hub_url: str, target: Path, progress: ProgressCallback) -> None:
    """Fetch the file to `target`, resuming what an earlier call left in `target.part`.

    Raises ModelFileError when the hub can't be reached or what came is not the model; then `target` doesn't exist.
    """
    part = target.with_name(target.name + ".part")
    async with _locked(part, progress) as file:
        if not await asyncio.to_thread(target.exists):
            try:
                await _fill(file, f"{hub_url}/{model.hub_repository}/resolve/main/{model.file}", model, progress)
            except HubError as error:
                raise ModelFileError(str(error)) from error
            await asyncio.to_thread(_accept, part, target, model)


async def _fill(file: IO[bytes], url: str, model: KnownModel, progress: ProgressCallback) -> None:
    if file.seek(0, 2) >= model.size_bytes:
        return

    def told(done_bytes: int) -> None:
        progress(Progress(f"downloading {model.file}", done_bytes, model.size_bytes))

    await fetch_into(file, url, max_bytes=model.size_bytes, on_bytes=told)


def _accept(part: Path, target: Path, model: KnownModel) -> None:
    try:
        check_known(part, model)
    except ModelFileError:
        if part.stat().st_size >= model.size_bytes:
            part.unlink()
        raise
    part.rename(target)


@asynccontextmanager
async def _locked(part: Path, progress: ProgressCallback) -> AsyncIterator[IO[bytes]]:
    """The partial file, open to append and locked: two processes never write one download."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("ab")
    except OSError as error:
        raise ModelFileError(f"{part}: can't be written: {error.strerror}") from error
    with file:
        waiting = False
        while not _try_lock(file):
            if not waiting:
                progress(Progress(f"another process downloads {part.stem}: waiting for it"))
            waiting = True
            await asyncio.sleep(_LOCK_POLL_S)
        try:
            yield file
        finally:
            _drop_if_empty(part, file)


def _drop_if_empty(part: Path, file: IO[bytes]) -> None:
    if file.tell() == 0:
        part.unlink(missing_ok=True)


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
