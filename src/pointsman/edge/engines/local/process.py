"""One engine as a child process: started, waited for, stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.local.settings import LocalEngineSettings

READY_PREFIX = "ready "
"""What an engine prints before its URL when it can be used."""

EngineCommand = Callable[[LocalEngineSettings], Sequence[str]]


def llama_command(settings: LocalEngineSettings) -> Sequence[str]:
    """The command of one llama.cpp engine that ends with this process."""
    encoded = msgspec.json.encode(settings).decode()
    return [sys.executable, "-m", "pointsman.edge.engines.local", str(os.getpid()), encoded]


class EngineProcess:
    """One run of one engine; a restart is another object."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, command: Sequence[str], log: Path) -> EngineProcess:
        """Start it, with everything that it says on stderr appended to `log`.

        It gets a session of its own: a Ctrl-C in the terminal is for its supervisor to handle. Raises EngineError.
        """
        try:
            with log.open("ab") as sink:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=sink,
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineError(f"can't be started ({' '.join(command[:3])} …, log {log}): {error.strerror}") from error
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def ready(self, limit_s: float) -> str:
        """Wait for the engine; its URL. Raises EngineError when it ends before, or takes longer than `limit_s`."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                async for line in self._process.stdout:
                    text = line.decode(errors="replace").rstrip()
                    if text.startswith(READY_PREFIX):
                        return text.removeprefix(READY_PREFIX)
        except TimeoutError:
            raise EngineError(f"was not ready after {limit_s:.0f} s; its log: {self._log}") from None
        ended = await self.ended()
        raise EngineError(f"{ended} before it was ready: {last_line(self._log)} (log: {self._log})")

    async def ended(self) -> str:
        """Wait for the end; how it ended, in words."""
        status = await self._process.wait()
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and kill it when it hasn't after `grace_s`."""
        if self._process.returncode is None:
            self._signal(self._process.terminate)
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._signal(self._process.kill)

    @staticmethod
    def _signal(send: Callable[[], None]) -> None:
        try:
            send()
        except ProcessLookupError:
            return


def last_line(log: Path, most_bytes: int = 4096) -> str:
    """The last line of a log that is not empty."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
