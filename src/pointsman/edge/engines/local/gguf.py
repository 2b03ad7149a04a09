"""Checks of model files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local.model_spec import KnownModel

_MAGIC = b"GGUF"
_READ_BYTES = 1 << 20


def check_gguf(path: Path) -> None:
    """Raise ModelFileError unless the file can be read and begins like a GGUF file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None
    if start != _MAGIC:
        raise ModelFileError(f"{path}: is no GGUF file; llama.cpp needs a model in that format")


def check_known(path: Path, model: KnownModel) -> None:
    """Raise ModelFileError unless the file is the known model's, by size and SHA-256."""
    try:
        size_bytes = path.stat().st_size
        actual = sha256_of(path) if size_bytes == model.size_bytes else None
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None
    if actual is None:
        raise ModelFileError(f"{path}: has {size_bytes:,} bytes instead of {model.size_bytes:,}")
    if actual != model.sha256:
        raise ModelFileError(f"{path}: has SHA-256 {actual} instead of {model.sha256}")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def file_in(path: Path) -> Path:
    """The `.gguf` file that a path means: itself, or the only one in a directory. Raises ModelFileError."""
    if not path.is_dir():
        if not path.exists():
            raise ModelFileError(f"{path}: there is no such file")
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ModelFileError(f"{path}: must hold exactly one .gguf file (found {found}); name the file itself")
    return files[0]
