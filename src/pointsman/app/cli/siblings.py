"""Which front ends belong together: `serve --processes N` writes it down, other verbs on this computer read it.

A supervisor keeps `PID.json` with the admin URLs of its front ends in a folder of this user, and a lock on `PID.lock`
as long as it or one of them lives. A file without a lock is what a killed one left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pointsman.app.cli.bus_folder import ENDING as BUS_ENDING
from pointsman.core.model.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_RUNTIME_DIR/pointsman`, or a folder of this user in the system's folder for temporary files."""
    given = environ.get("XDG_RUNTIME_DIR")
    return Path(given) / "pointsman" if given else Path(tempfile.gettempdir()) / f"pointsman-{os.getuid()}"


class SiblingsFile:
    """The supervisor's file. `close` removes it."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError when the folder can't be used."""
        try:
            _make_folder(folder)
            for lock in _stale(folder):
                _remove(lock)
            self._lock = folder / f"{os.getpid()}.lock"
            self._descriptor = _make_locked(self._lock)
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror}; correct it, or name another folder in XDG_RUNTIME_DIR"
            ) from None

    def write(self, admin_urls: Collection[str]) -> None:
        """Replace what is written. Raises OSError."""
        new = self._lock.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(list(admin_urls)))
        new.replace(self._lock.with_suffix(".json"))

    def close(self) -> None:
        """Remove it."""
        _remove(self._lock)
        os.close(self._descriptor)


def front_ends_with(admin_url: str, folder: Path) -> list[str]:
    """The admin URLs of all front ends that belong to the one at `admin_url`, which comes first as it was given."""
    wanted = _address(admin_url)
    for lock in sorted(folder.glob("*.lock")) if _is_ours(folder) else ():
        if _is_locked(lock):
            urls = _read(lock.with_suffix(".json"))
            if wanted in [_address(url) for url in urls]:
                return [admin_url, *(url for url in urls if _address(url) != wanted)]
    return [admin_url]


def _address(url: str) -> tuple[str, int | None] | None:
    try:
        parts = urlsplit(url)
        return ("loopback" if parts.hostname in _LOOPBACK else parts.hostname or "", parts.port)
    except ValueError:
        return None


def _read(file: Path) -> list[str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return []


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
        raise PermissionError(1, "is not a folder of this user alone")


def _is_ours(folder: Path) -> bool:
    """In a folder for everybody's temporary files somebody else could have made it, to lead us elsewhere."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o022 and folder.is_dir() and not folder.is_symlink()


def _make_locked(lock: Path) -> int:
    """It is locked before it gets its name: nobody can take it for one that was left behind."""
    new = lock.with_suffix(".making")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.replace(lock)
    return descriptor


def _stale(folder: Path) -> Iterator[Path]:
    return (lock for lock in list(folder.glob("*.lock")) if not _is_locked(lock))


def _is_locked(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(lock: Path) -> None:
    shutil.rmtree(lock.with_suffix(BUS_ENDING), ignore_errors=True)
    for file in (lock.with_suffix(".json"), lock.with_suffix(".new"), lock):
        with suppress(FileNotFoundError):
            file.unlink()
