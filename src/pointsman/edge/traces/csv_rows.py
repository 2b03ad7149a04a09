"""Rows of CSV files, and traces of which each row is a time and two lengths."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.loaded import TraceBuilder
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Source


def add_lengths(
    builder: TraceBuilder, source: Source, columns: tuple[str, str, str], to_ms: Callable[[str, str], float]
) -> None:
    """Add a request for each row: arrival (`to_ms` of cell and column name), prompt and output tokens, so named."""
    for line, row in csv_rows(source, columns):
        try:
            if isinstance(row, RowError):
                raise row
            at_ms = to_ms(row[columns[0]], columns[0])
            prompt, output = (to_whole_number(row[column], column) for column in columns[1:])
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        builder.add(line, TraceRequest(at_ms, prompt, output))


def csv_rows(source: Source, needed: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str] | RowError]]:
    """Line number and row by column name, or why it is none. Raises TraceError when a needed column is missing."""
    columns: list[str] = []
    for line, raw in source.lines():
        try:
            cells = cells_of(raw)
        except RowError as error:
            yield line, error
            continue
        if not columns:
            columns = [cell.strip() for cell in cells]
            missing = [name for name in needed if name not in columns]
            if missing:
                raise TraceError(f"{source.path}, line {line}: no column {', '.join(missing)}; it has {columns}")
        elif len(cells) != len(columns):
            yield line, RowError(f"has {len(cells)} cells, the header {len(columns)}")
        else:
            yield line, dict(zip(columns, cells, strict=True))


def cells_of(raw: bytes) -> list[str]:
    """The cells of one line. Raises RowError."""
    try:
        return next(csv.reader([raw.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RowError(f"is no line of CSV: {error}") from None


def to_whole_number(text: str, field: str) -> int:
    """A cell as a whole number. Raises RowError."""
    try:
        return int(text)
    except ValueError:
        raise RowError(f"{field}: expected a whole number, not {text.strip()!r}") from None


def to_number(text: str, field: str) -> float:
    """A cell as a number. Raises RowError."""
    try:
        return float(text)
    except ValueError:
        raise RowError(f"{field}: expected a number, not {text.strip()!r}") from None
