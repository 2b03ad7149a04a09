"""Where front ends of one `serve --processes` find each other's sockets: a folder of this user, gone at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pointsman.core.model.errors import ConfigError

_LONGEST = 107
"""Bytes of the path of a socket."""
_NAME = "/4194304.sock"
"""As long as the name of one gets: the highest process id that Linux gives."""
ENDING = ".bus"
_PREFIX = "pointsman-"
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders for temporary files, where TMPDIR names one that is too deep for sockets."""


@contextmanager
def bus_folder(runtime_folder: Path | None) -> Iterator[Path]:
    """A new folder in `runtime_folder`, where that is short enough, else among the system's temporary files.

    Raises ConfigError where none can be made.
    """
    folder = None if runtime_folder is None else runtime_folder / f"{os.getpid()}{ENDING}"
    if folder is None or not _is_short(folder):
        folder = _among_temporary_files()
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that had our number
        folder.mkdir(mode=0o700)
    parent = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == parent:
            shutil.rmtree(folder, ignore_errors=True)


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) + len(_NAME) <= _LONGEST


def _among_temporary_files() -> Path:
    places = dict.fromkeys((tempfile.gettempdir(), *_SHORT))
    for place in places:
        if _is_short(Path(place, f"{_PREFIX}12345678")):
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    raise ConfigError(
        f"--processes: front ends need a folder for their sockets, whose paths have at most {_LONGEST} bytes, and none "
        f"of {', '.join(places)} serves; name one in XDG_RUNTIME_DIR or TMPDIR"
    )
