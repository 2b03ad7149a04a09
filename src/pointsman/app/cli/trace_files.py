"""Reading and writing of traces for verbs: options, a progress bar, what was wrong, what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace
from pointsman.edge.traces.access_log import parse_fields
from pointsman.edge.traces.canonical import write_trace
from pointsman.edge.traces.formats import FORMATS, read_trace
from pointsman.edge.traces.lines import OnBytes
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import Problems
from pointsman.edge.traces.source import ReadOptions

F = TypeVar("F", bound=Callable[..., object])

_OPTIONS = (
    click.option("--format", "format_name", type=click.Choice(list(FORMATS)), help="Of the file; else by its content."),
    click.option("--strict", is_flag=True, help="A row that can't be used is an error."),
    click.option(
        "--fields", multiple=True, metavar="FIELD=NAME,…", help="Of an access log, for example prompt=usage.input."
    ),
    click.option(
        "--block-tokens", type=click.IntRange(min=1), help="Of a Mooncake trace: tokens a block; else by its content."
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For what is drawn."),
    click.option("--start-s", type=click.FloatRange(min=0), default=0.0, help="Of ServeGen clients: where to start."),
    click.option("--duration-s", type=click.FloatRange(min=0, min_open=True), help="Of ServeGen clients: how long."),
)


@dataclass(frozen=True, slots=True)
class ReadFlags:
    """What was given of them."""

    format_name: str | None
    strict: bool
    fields: tuple[str, ...]
    block_tokens: int | None
    seed: int
    start_s: float
    duration_s: float | None


def read_options(command: F) -> F:
    """The options of verbs that read a trace; a verb takes them as `**flags` and makes `ReadFlags(**flags)`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def load(file: Path, flags: ReadFlags) -> LoadedTrace:
    """Read a trace; what was wrong with it goes to stderr. Raises TraceError."""
    options = ReadOptions(
        strict=flags.strict,
        seed=flags.seed,
        start_s=flags.start_s,
        duration_s=flags.duration_s,
        fields=parse_fields(flags.fields),
        block_tokens=flags.block_tokens,
    )
    with _progress(f"reading {file.name}") as on_bytes:
        loaded = read_trace(file, flags.format_name, replace(options, on_bytes=on_bytes))
    say_problems(file, loaded.problems)
    return loaded


def say_problems(file: Path, problems: Problems) -> None:
    """What was wrong with a file, on stderr."""
    for line in problems.describe():
        click.echo(f"{file.name}: {line}", err=True)


def save(trace: Trace, file: Path, observed: tuple[Observed, ...] = ()) -> None:
    """Write a trace in our own format and say so. Raises TraceError."""
    if not len(trace):
        raise TraceError(f"{file}: not written, for no request came: more time, or a higher rate, is needed")
    write_trace(trace, file, observed)
    say_written(trace, file)


def say_written(trace: Trace, file: Path) -> None:
    """One line about a file."""
    size = file.stat().st_size
    written = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
    click.echo(f"{file}: {len(trace):,} requests in {trace.duration_ms / 1000:,.0f} s, {written}")


def different_file(out: Path, source: Path) -> None:
    """Raises TraceError where the result would replace what it is made from."""
    if out.exists() and out.samefile(source):
        raise TraceError(f"{out}: is the file that is read; name another one to write")


@contextmanager
def _progress(text: str) -> Iterator[OnBytes | None]:
    """A bar on a terminal; it appears only where reading takes time enough to be called back."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
