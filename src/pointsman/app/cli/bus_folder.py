"""Where front ends of one `serve --processes` find each other's sockets: a folder of this user, gone at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 107
"""Bytes of the path of a socket."""
_NAME = "/4194304.sock"
"""As long as the name of one gets: the highest process id that Linux gives."""
ENDING = ".bus"


@contextmanager
def bus_folder(runtime_folder: Path | None) -> Iterator[Path]:
    """A new folder in `runtime_folder`, where that is short enough, else among the system's temporary files."""
    folder = None if runtime_folder is None else runtime_folder / f"{os.getpid()}{ENDING}"
    if folder is None or len(os.fsencode(folder)) + len(_NAME) > _LONGEST:
        folder = Path(tempfile.mkdtemp(prefix="pointsman-"))
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that had our number
        folder.mkdir(mode=0o700)
    parent = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == parent:
            shutil.rmtree(folder, ignore_errors=True)
