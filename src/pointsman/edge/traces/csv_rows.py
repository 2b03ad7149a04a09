"""Rows of CSV files with a header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Source


def csv_rows(source: Source, needed: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str] | RowError]]:
    """Line number and row by column name, or why it is none. Raises TraceError when a needed column is missing."""
    columns: list[str] = []
    for line, raw in source.lines():
        try:
            cells = next(csv.reader([raw.decode()], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            yield line, RowError(f"is no line of CSV: {error}")
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


def whole_number(row: Mapping[str, str], column: str) -> int:
    """A cell as a whole number. Raises RowError."""
    text = row[column].strip()
    try:
        return int(text)
    except ValueError:
        raise RowError(f"{column}: expected a whole number, not {text!r}") from None


def number(row: Mapping[str, str], column: str) -> float:
    """A cell as a number. Raises RowError."""
    text = row[column].strip()
    try:
        return float(text)
    except ValueError:
        raise RowError(f"{column}: expected a number, not {text!r}") from None
