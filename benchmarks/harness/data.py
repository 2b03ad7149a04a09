"""Public traces and tables from outside the repository."""

from __future__ import annotations

import os
from pathlib import Path

from harness.processes import BenchmarkError


def data_file(name: str) -> Path:
    """A file or folder under $POINTSMAN_DATA. Raises BenchmarkError that says what to set."""
    root = os.environ.get("POINTSMAN_DATA")
    if not root:
        raise BenchmarkError("needs public data: point the environment variable POINTSMAN_DATA at its folder")
    path = Path(root) / name
    if not path.exists():
        raise BenchmarkError(f"there is no {name} in the folder that POINTSMAN_DATA names")
    return path
