"""Stamps of files, by which a change is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = "tuple[tuple[int, int, int, int] | str, ...]"


def stamp_of(paths: Iterable[Path]) -> Stamp:
    """Changes when one of the files is written, replaced, moved away or swapped by a link; never raises."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int, int] | str:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.strerror or "unknown"
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
