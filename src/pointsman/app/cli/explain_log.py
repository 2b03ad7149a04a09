"""Decisions from the files of a decision log, those that were rotated away included."""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from pointsman.app.cli.explain_source import AROUND, FactsByModel, NothingFoundError
from pointsman.core.model.errors import TraceError
from pointsman.edge.decisions.row_search import is_named, matches, search_rows
from pointsman.edge.decisions.search import Query
from pointsman.edge.decisions.transfers import TransferReport, TransferSums
from pointsman.edge.telemetry.decision_row import MARK, VERSION, DecisionRow, Header
from pointsman.edge.traces.lines import read_lines

_ROW = msgspec.json.Decoder(DecisionRow)
_HEADER = msgspec.json.Decoder(Header)
_HEADER_START = b'{"' + MARK.encode()


class _Opened(NamedTuple):
    """A file under the name that it had when it was opened."""

    path: Path
    file: BinaryIO | None
    """None: there was none of that name."""


class LogFiles:
    """Each log at `path` and `path.1`, `path.2`, … before it; those of several front ends as one.

    Of `serve --processes` `decisions.jsonl` stands for `decisions.1.jsonl`, `decisions.2.jsonl` and so on. Files are
    read anew each time: they may be larger than memory. They are opened once, as they may be rotated meanwhile.

    Raises TraceError for a file that can't be read, is of a later format, or holds no decision.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        each = dict.fromkeys(one for path in paths for one in _of_processes(path))
        with ExitStack() as stack:
            self._logs = [_with_rotated(path, stack) for path in each]
            self._stack = stack.pop_all()
        self._files = [file.path for files in self._logs for file in files]
        self._bad: dict[tuple[Path, int], str] = {}

    def close(self) -> None:
        """The files are read no more."""
        self._stack.close()

    @property
    def notes(self) -> list[str]:
        """Of lines that are no decisions."""
        if not self._bad:
            return []
        (file, line), why = next(iter(self._bad.items()))
        return [f"{len(self._bad)} lines are no decisions and were left out; the first: {file}, line {line}: {why}"]

    def one(self, name: str) -> tuple[DecisionRow, str]:
        """The youngest of that name."""
        found = None
        for row, file in self._rows():
            if is_named(row, name):
                found = (row, str(file))
        if found is None:
            files = ", ".join(str(file) for file in self._files)
            raise NothingFoundError(
                f"{name} is in none of {files}: it is neither the id of a decision written there nor what a client "
                "called one; it may be older than what is kept, or was not written (decision-log.keep, "
                "decision-log.sample)"
            )
        return found

    def search(self, query: Query) -> list[tuple[DecisionRow, str]]:
        """Rows as they were written."""
        where: dict[str, str] = {}

        def remembered() -> Iterator[DecisionRow]:
            for row, file in self._rows():
                where[row.id] = str(file)
                yield row

        return [(row, where[row.id]) for row in search_rows(remembered(), query)]

    def plain(self, query: Query) -> list[DecisionRow]:
        """Without states."""
        rows = (msgspec.structs.replace(row, state="") for row, _ in self._rows())
        return search_rows(rows, query)

    def around(self, rows: Sequence[DecisionRow]) -> dict[str, list[DecisionRow]]:
        """Those written before each, and some after."""
        before: deque[DecisionRow] = deque(maxlen=AROUND)
        found: dict[str, list[DecisionRow]] = {}
        wanted = {row.id for row in rows}
        after: dict[str, int] = {}
        for row, _ in self._rows():
            for name in after:
                if after[name]:
                    found[name].append(row)
                    after[name] -= 1
            if row.id in wanted:
                found[row.id] = list(before)
                after[row.id] = AROUND // 3
            before.append(row)
        return found

    def facts(self) -> FactsByModel:
        """A log does not tell how workers are now."""
        return {}

    def transfers(self, query: Query) -> TransferReport:
        """Of all rows that match. A log does not tell on which machines workers are: engines stand for them."""
        sums = TransferSums()
        rows = (row for row, _ in self._rows() if matches(row, query))
        for row in rows if query.last is None else deque(rows, query.last):
            sums.add(row)
        return sums.report()

    def _rows(self) -> Iterator[tuple[DecisionRow, Path]]:
        """In the order in which their requests ended, of several logs as well as of one."""
        any_row = False
        for found in heapq.merge(*(self._rows_of(files) for files in self._logs), key=_ended_ms):
            any_row = True
            yield found
        if self._bad and not any_row:
            raise TraceError(f"{self._files[-1]}: no decision log: {next(iter(self._bad.values()))}")

    def _rows_of(self, files: Sequence[_Opened]) -> Iterator[tuple[DecisionRow, Path]]:
        for file, opened in files:
            for number, line in read_lines(file, opened=opened):
                if line.startswith(_HEADER_START):
                    _check(file, number, line)
                    continue
                try:
                    row = _ROW.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    self._bad[file, number] = str(error)
                    continue
                yield row, file


def _ended_ms(found: tuple[DecisionRow, Path]) -> float:
    return found[0].at_ms + (found[0].last_token_ms or 0.0)


def _check(file: Path, number: int, line: bytes) -> None:
    try:
        version = _HEADER.decode(line).pointsman_decisions
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{file}, line {number}: a damaged header of a decision log: {error}") from None
    if version != VERSION:
        raise TraceError(
            f"{file}, line {number}: a decision log of format {version}; this version of pointsman reads {VERSION}"
        )


def _of_processes(path: Path) -> list[Path]:
    """The path itself where such a file is, else those that `serve --processes` makes of its name."""
    if path.exists():
        return [path]
    numbers = []
    for file in path.parent.glob(f"{escape(path.stem)}.*{escape(path.suffix)}"):
        number = file.name.removeprefix(f"{path.stem}.").removesuffix(path.suffix)
        if number.isascii() and number.isdigit() and file.name == f"{path.stem}.{number}{path.suffix}":
            numbers.append((int(number), file))
    return [file for _, file in sorted(numbers)] or [path]


def _with_rotated(path: Path, stack: ExitStack) -> list[_Opened]:
    """Oldest first; the stack closes them.

    They are opened from the youngest on: one that is rotated meanwhile is met again, not missed.
    """
    older = []
    for file in path.parent.glob(f"{escape(path.name)}.*"):
        number = file.name.removeprefix(f"{path.name}.")
        if number.isascii() and number.isdigit():
            older.append((int(number), file))
    found: list[_Opened] = []
    met: set[tuple[int, int]] = set()
    for name in (path, *(file for _, file in sorted(older))):
        opened = _opened(name)
        if opened is not None:
            stack.enter_context(opened)
            about = os.fstat(opened.fileno())
            if (about.st_dev, about.st_ino) in met:
                continue
            met.add((about.st_dev, about.st_ino))
            found.append(_Opened(name, opened))
    return found[::-1] or [_Opened(path, None)]


def _opened(path: Path) -> BinaryIO | None:
    """None where it is not there (any more). Raises TraceError for one that can't be read."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror or error}") from error
