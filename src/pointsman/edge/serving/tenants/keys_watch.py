"""KeysWatch: reads the file of keys again when it changes; a broken one changes nothing, loudly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.keys_file import KeysFile, load_keys
from pointsman.edge.configuration.named import named
from pointsman.edge.configuration.watched_files import Stamp, stamp_of
from pointsman.edge.serving.tenants.counts import TenantCounts

LOOK_EVERY_S = 1.0

_log = logging.getLogger("pointsman.serving")


class KeysWatch:
    """Of one file. `take` gets what was read, on the event loop."""

    def __init__(self, path: Path, take: Callable[[KeysFile], None], counts: TenantCounts) -> None:
        """Reads the file. Raises ConfigError: a front end must not start open because its keys can't be read."""
        self.path = path
        self._take = take
        self._counts = counts
        self._stamp: Stamp = stamp_of((path,))
        with named("auth.keys_file"):
            self.first = load_keys(path)
        self.fault: str | None = None
        """What is wrong with the file as it is now; the keys read before hold."""
        self.read_at_s = time.time()
        """When the keys that hold were read, seconds since 1970."""
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look once a second, in a thread: the file may be on a disk that hangs."""
        self._task = asyncio.create_task(self._run(), name=f"keys in {self.path}")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Read the file if it changed. Never raises ConfigError: see `fault`."""
        async with self._turn:  # else two would read the same change, and count it twice
            stamp = await asyncio.to_thread(stamp_of, (self.path,))
            if stamp == self._stamp:
                return
            with suppress(ConfigError):
                keys, stamp = await self._read()
                # Else it is being written: see the next look.
                if await asyncio.to_thread(stamp_of, (self.path,)) == stamp:
                    self._take(keys)

    async def read(self) -> KeysFile:
        """What is in the file now; it is not taken by this. Raises ConfigError, which `fault` then tells, too."""
        return (await self._read())[0]

    async def _read(self) -> tuple[KeysFile, Stamp]:
        """With the stamp that the file had just before."""
        stamp = await asyncio.to_thread(stamp_of, (self.path,))
        try:
            keys = await asyncio.to_thread(load_keys, self.path)
        except ConfigError as error:
            self._broken(str(error), stamp)
            raise
        except Exception as error:
            # The watch must outlive whatever stands in the file: it may be what revokes a key.
            fault = f"{self.path}: can't be used, for a reason that nobody expected ({type(error).__name__})"
            self._broken(fault, stamp)
            raise ConfigError(fault) from error
        self._stamp = stamp
        self._counts.reloads["read"] += 1
        self.fault, self.read_at_s = None, time.time()
        _log.info("%s: %d API keys", self.path, len(keys.keys))
        return keys, stamp

    def _broken(self, fault: str, stamp: Stamp) -> None:
        self._stamp = stamp
        self._counts.reloads["broken"] += 1
        if fault != self.fault:
            _log.error("the keys read before stay in force: %s", fault)
        self.fault = fault
