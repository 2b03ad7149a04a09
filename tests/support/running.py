"""`pointsman …` as a process of its own, and all that descends from it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psutil

LIMIT_S = 120.0
_MARK = "POINTSMAN_TEST_MARK"


class Running:
    """One `pointsman …` in the background; its lines (stdout and stderr) as they come."""

    def __init__(
        self, arguments: tuple[str, ...], directory: Path, environ: dict[str, str], within: tuple[str, ...] = ()
    ) -> None:
        """`within`: what the command is put behind, such as a network namespace."""
        self.mark = uuid.uuid4().hex
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", "pointsman.app.cli.main", *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ, _MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def line(self, part: str) -> str:
        """Wait for a line that contains `part`."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {part!r} in {LIMIT_S} s, but {self.lines}") from None
            if line is None:
                raise AssertionError(f"ended without a line with {part!r}: {self.lines}")
            self.lines.append(line)
            if part in line:
                return line

    def rest(self) -> list[str]:
        """All lines that are left of a process that has ended."""
        self._reader.join(LIMIT_S)
        while (line := self._queue.get(timeout=LIMIT_S)) is not None:
            self.lines.append(line)
        self._queue.put(None)
        return self.lines

    def url(self, part: str) -> str:
        """The first URL in the line that contains `part`."""
        word = next(word for word in self.line(part).split() if word.startswith("http"))
        return word.rstrip(",;)").removesuffix("/v1")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal and wait for the end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def family(self) -> list[psutil.Process]:
        """All live processes that descend from this one, even if their parents are gone."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        for process in self.family():
            process.kill()
        self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
