"""SavedSlots: files of slots that were saved for other engines, removed once nobody can still be about to read them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pointsman.core.model.errors import ConfigError

KEPT_S = 600.0
"""A request that is to read one waits no longer for its engine."""
_LOOK_EVERY_S = 30.0
_PATTERN = "pointsman-*.bin"

_log = logging.getLogger("pointsman.engines")


class SavedSlots:
    """Of one directory, as long as the context lasts. Several engines may look after one.

    Raises ConfigError where the directory can't be written. `now_s` is on the clock of the files' times.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now_s = now_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="saved slots", daemon=True)
        self._said = False
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"--slot-save-path {folder}: expected a directory that can be written; create it first")

    def __enter__(self) -> SavedSlots:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def sweep(self) -> int:
        """Remove what is old; how many that were. What can't be removed is logged once."""
        removed = 0
        for file in self._folder.glob(_PATTERN):
            try:
                if self._now_s() - file.stat().st_mtime >= KEPT_S:
                    file.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # another engine was faster
            except OSError as error:
                if not self._said:
                    self._said = True
                    _log.warning("%s: saved slots can't be removed: %s", self._folder, error.strerror)
        return removed

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            self.sweep()
