"""What a reader gets: the file, how to read it, and where to say what was wrong; and what a format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pointsman.edge.traces.lines import OnBytes, read_head, read_lines
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.problems import Problems


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read; each format takes what it has a use for."""

    strict: bool = False
    """A row that can't be used is an error."""
    seed: int = 0
    """For formats that describe traffic instead of listing it."""
    start_s: float = 0.0
    """Of such a description: the second of it at which the trace starts."""
    duration_s: float | None = None
    """Of such a description: how long the trace is; None: all of it."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Of access logs: which field holds what, for example `{"prompt": "usage.prompt_tokens"}`."""
    block_tokens: int | None = None
    """Tokens a block of ids, where the file does not say."""
    on_bytes: OnBytes | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One file or folder that is being read."""

    path: Path
    options: ReadOptions
    problems: Problems

    @property
    def name(self) -> str:
        """The file's name without its endings."""
        return self.path.name.removesuffix(".gz").rpartition(".")[0] or self.path.name

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Numbered lines."""
        return read_lines(self.path, self.options.on_bytes)


@dataclass(frozen=True, slots=True)
class Head:
    """What a file starts with: enough to tell formats apart."""

    path: Path
    text: str
    """The first 64 KiB; empty for a folder."""
    rows: tuple[Mapping[str, object], ...]
    """The JSON objects among the first lines."""

    def has(self, *keys: str) -> bool:
        """Whether the first JSON object has all these keys."""
        return bool(self.rows) and all(key in self.rows[0] for key in keys)

    @property
    def columns(self) -> tuple[str, ...]:
        """The first line, cut at commas: the column names of a CSV file."""
        return tuple(name.strip().strip('"') for name in self.text.partition("\n")[0].split(","))


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file."""

    name: str
    """As given to `--format`."""
    what: str
    recognise: Callable[[Head], bool]
    read: Callable[[Source], LoadedTrace]
    takes: tuple[str, ...] = ()
    """Of the options of `ReadOptions` that only some formats have a use for, those that this one has."""

    def refused(self, options: ReadOptions) -> tuple[str, ...]:
        """Options that were given, which it has no use for."""
        plain = ReadOptions()
        return tuple(
            name
            for name in ("fields", "block_tokens", "start_s", "duration_s")
            if getattr(options, name) != getattr(plain, name) and name not in self.takes
        )


_MOST_ROWS = 20


def head_of(path: Path) -> Head:
    """The start of a file. Raises TraceError when it can't be read."""
    if path.is_dir():
        return Head(path, "", ())
    text = read_head(path).decode("utf-8", errors="replace").removeprefix("\ufeff").lstrip()
    rows = []
    for line in text.split("\n")[:_MOST_ROWS]:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return Head(path, text, tuple(rows))
