"""SiblingFolder: how front ends of one host find each other: each has a socket `PID.sock` in a folder of this user.

Nobody else can reach these sockets, so no secret is needed. A socket without a process is what a killed one left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.25
_ENDING = ".sock"


class SiblingFolder:
    """The folder as one front end sees it."""

    def __init__(self, folder: Path, look_s: float = _LOOK_S) -> None:
        self._folder = folder
        self._look_s = look_s

    @property
    def own(self) -> str:
        """Where this process is to listen."""
        return f"ipc://{self._folder / str(os.getpid())}{_ENDING}"

    async def run(self, found: Callable[[Collection[str]], None]) -> None:
        """Tell who is there, again and again. Never returns."""
        while True:
            found(self.others())
            await asyncio.sleep(self._look_s)

    def others(self) -> list[str]:
        """Where the others listen that live."""
        places = []
        with suppress(OSError):  # the folder goes when the fleet stops
            for file in sorted(self._folder.iterdir()):
                if file.suffix != _ENDING or not file.stem.isdecimal() or int(file.stem) == os.getpid():
                    continue
                if _lives(int(file.stem)):
                    places.append(f"ipc://{file}")
                else:
                    file.unlink(missing_ok=True)
        return places


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
