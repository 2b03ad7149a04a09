"""DecisionLog: rows to a file that rotates, written by one thread beside the event loop.

The request path appends to a bounded queue and never waits. Ten times a second what is queued is made into lines and
written in one go, so a process that is killed loses the last moments at most, and what is in the file is whole but
perhaps for its last line, which a later start ends.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.edge.telemetry.decision_row import VERSION, DecisionRow, Header

MOST_QUEUED = 8_192
WRITE_EVERY_S = 0.1
_LINES_A_WRITE = 256

MakeRow = Callable[[], DecisionRow]

_log = logging.getLogger("pointsman.telemetry")


class DecisionLog:
    """One file, `path`, and `keep` older ones: `path.1` is the youngest of them.

    `product`: version of pointsman, for the header. Raises ConfigError if the file can't be opened.
    """

    def __init__(
        self, path: Path, max_bytes: int, keep: int, *, product: str = "", clock_s: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._product = product
        self._clock_s = clock_s
        self._queue: deque[MakeRow] = deque()
        self._stop = threading.Event()
        self._encoder = msgspec.json.Encoder()
        self._said = False
        """That rows were dropped; said again after rows were written."""
        self.written = 0
        self.dropped = 0
        try:
            self._file: FileIO | None = self._opened()
        except OSError as error:
            raise ConfigError(f"decision-log.path: {path} can't be written: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    def add(self, make: MakeRow) -> None:
        """Write a row down soon. `make` is called in the writer's thread: it may only use what nobody changes."""
        if len(self._queue) >= MOST_QUEUED:
            self._lose(1, f"its disk or its thread is too slow: {MOST_QUEUED} rows wait")
        else:
            self._queue.append(make)

    def close(self) -> None:
        """Write what is queued, and end. Blocks meanwhile."""
        self._stop.set()
        self._thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- in the thread

    def _run(self) -> None:
        while not self._stop.wait(WRITE_EVERY_S):
            self._write_queued()
        self._write_queued()

    def _write_queued(self) -> None:
        queue = self._queue
        while queue:
            lines: list[bytes] = []
            while queue and len(lines) < _LINES_A_WRITE:
                line = self._line(queue.popleft())
                if line is not None:
                    lines.append(line)
            self._write(lines)

    def _line(self, make: MakeRow) -> bytes | None:
        try:
            return self._encoder.encode(make()) + b"\n"
        except Exception:  # one row must not end all others
            if not self._said:
                _log.exception("decision log: a row can't be made")
            self._lose(1, "rows can't be made")
            return None

    def _write(self, lines: list[bytes]) -> None:
        start, begun = 0, math.inf
        try:
            file = self._file = self._current() or self._opened()
            size = begun = os.fstat(file.fileno()).st_size
            for end, line in enumerate(lines):
                if size + len(line) > self._max_bytes and size > 0:
                    _write_all(file, b"".join(lines[start:end]))
                    start = end
                    file = self._file = self._rotated(file)
                    size = begun = os.fstat(file.fileno()).st_size
                size += len(line)
            _write_all(file, b"".join(lines[start:]))
        except OSError as error:
            start += self._whole(lines[start:], begun)
            self._lose(len(lines) - start, f"{self._path} can't be written: {error.strerror or error}")
            self.written += start
            self._give_up()
            return
        self.written += len(lines)
        self._said = False

    def _whole(self, lines: list[bytes], begun: float) -> int:
        """How many of the lines the file took before it took no more; it had `begun` bytes."""
        if self._file is None:
            return 0
        try:
            taken = os.fstat(self._file.fileno()).st_size - begun
        except (OSError, ValueError):  # closed, or out of reach
            return 0
        return sum(end <= taken for end in itertools.accumulate(map(len, lines)))

    def _current(self) -> FileIO | None:
        """The open file; None where there is none, or it was moved, removed or emptied, by logrotate or by hand."""
        file = self._file
        if file is None:
            return None
        held = os.fstat(file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        if there is not None and os.path.samestat(held, there) and held.st_size > 0:
            return file
        self._give_up()
        return None

    def _give_up(self) -> None:
        """What is written next opens the file again."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                _log.debug("decision log: closing failed, too: %s", error)

    def _rotated(self, file: FileIO) -> FileIO:
        file.close()
        self._file = None
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._keep + 1))]
        names[-1].unlink(missing_ok=True)
        for older, younger in reversed(list(zip(names[1:], names, strict=False))):
            if younger.exists():
                younger.replace(older)
        return self._opened()

    def _opened(self) -> FileIO:
        """For appending, unbuffered; a new file gets its header, and a line that was cut off by a kill an end."""
        file = self._path.open("ab", buffering=0)
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            header = Header(VERSION, self._product, round(self._clock_s() * 1000, 3))
            _write_all(file, self._encoder.encode(header) + b"\n")
        elif not self._ends_a_line(size):
            _write_all(file, b"\n")
        return file

    def _ends_a_line(self, size: int) -> bool:
        with self._path.open("rb") as reader:
            reader.seek(size - 1)
            return reader.read(1) == b"\n"

    def _lose(self, count: int, why: str) -> None:
        self.dropped += count
        if not self._said:
            self._said = True
            _log.warning(
                "decision log: rows are dropped: %s (said once; counted in pointsman_decision_log_dropped_total)", why
            )


def _write_all(file: FileIO, data: bytes) -> None:
    """Unbuffered files may take a part only, before they say why."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
