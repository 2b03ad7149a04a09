"""Recorded data from outside the repository, and small files of rows."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest


def recorded(name: str) -> Path:
    """A file or folder below POINTSMAN_DATA; skips the test where the variable is not set."""
    folder = os.environ.get("POINTSMAN_DATA")
    if not folder:
        pytest.skip(f"POINTSMAN_DATA is not set: the recorded {name} is not here")
    return Path(folder) / name


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """A file with a line for each row, as it is if it is text, else as JSON; gzipped if the name says so."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
