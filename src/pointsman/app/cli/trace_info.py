"""`pointsman trace info`: what a trace is like."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.app.cli.output import json_option, write_json
from pointsman.app.cli.trace_files import ReadFlags, load, read_options
from pointsman.core.workload.statistics import (
    CACHE_TOKENS,
    ReuseFigures,
    Sessions,
    Spread,
    Statistics,
    statistics,
)
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.observed import Observed

_PIPE_WIDTH = 200
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_MOST_CACHE_TOKENS = 1e15
_MOST_KINDS = 8


class ObservedFigures(msgspec.Struct):
    """What a file says was measured, in ms."""

    ttft_ms: Spread | None
    tpot_ms: Spread | None
    e2e_ms: Spread | None


class TraceInfo(msgspec.Struct):
    """The document of `trace info --json`."""

    file: str
    format: str
    rows: int
    left_out: int
    moved: int
    notes: list[str]
    statistics: Statistics
    observed: ObservedFigures | None


def _sizes(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    sizes = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)", part.strip().lower())
        if match is None:
            raise click.BadParameter(f"{part!r} is no number of tokens; expected for example 3M,10M", ctx, param)
        tokens = float(match.group(1)) * _UNITS[match.group(2)]
        if not 1 <= tokens <= _MOST_CACHE_TOKENS:
            raise click.BadParameter(f"{part!r}: a cache holds 1 to {_MOST_CACHE_TOKENS:.0e} tokens", ctx, param)
        sizes.append(int(tokens))
    return tuple(sizes)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--cache-tokens",
    callback=_sizes,
    default=",".join(f"{size // 1_000_000}M" for size in CACHE_TOKENS),
    show_default=True,
    help="Sizes of LRU caches to tell the found share of.",
)
@read_options
@json_option
def info(file: Path, cache_tokens: tuple[int, ...], json_file: str | None, **flags: Any) -> int:
    """Show what a trace is like: rates, lengths, sessions, and how much of its prompts caches would find.

    Any format that can be read: `pointsman trace formats` lists them.
    """
    loaded = load(file, ReadFlags(**flags))
    document = _info(file, loaded, cache_tokens)
    if json_file is not None:
        write_json(document, json_file)
        return 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    _print(console, document)
    return 0


def _info(file: Path, loaded: LoadedTrace, cache_tokens: tuple[int, ...]) -> TraceInfo:
    problems = loaded.problems
    return TraceInfo(
        str(file),
        loaded.format,
        problems.rows,
        problems.left_out,
        problems.moved,
        problems.notes,
        statistics(loaded.trace, cache_tokens),
        _observed(loaded.observed),
    )


def _observed(rows: tuple[Observed, ...]) -> ObservedFigures | None:
    times = [
        Spread.of([value for value in values if value is not None])
        for values in (
            [row.ttft_ms for row in rows],
            [row.tpot_ms for row in rows],
            [row.e2e_ms for row in rows],
        )
    ]
    return ObservedFigures(*times) if any(times) else None


def _print(console: Console, document: TraceInfo) -> None:
    figures = document.statistics
    console.print(f"[bold]{escape(figures.name)}[/bold] ({document.format}): {escape(figures.source)}")
    for line in (
        _count(figures.requests, "request") + _arriving(figures),
        f"{_tokens(figures.total_prompt_tokens)} prompt tokens, {_tokens(figures.total_output_tokens)} output tokens",
        *_kinds("models", figures.models),
        *_kinds("tenants", figures.tenants),
        *_kinds("priorities", {str(key): count for key, count in figures.priorities.items()}),
    ):
        console.print(escape(line), soft_wrap=True)
    console.print()
    console.print(_spreads(document))
    if figures.reuse is not None:
        console.print()
        _print_reuse(console, figures.reuse, figures.sessions is not None)
    else:
        console.print("prefixes: nothing is known of what prompts have in common")


def _count(count: int, name: str) -> str:
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def _arriving(figures: Statistics) -> str:
    arriving = figures.arriving
    if arriving.per_s is None:
        return ", all at once" if figures.requests > 1 else ""
    burstiness = "" if arriving.cv is None else f", CV of distances {arriving.cv:.2f}"
    peaks = ", ".join(f"{per_s:,.3g}/s in {window} s" for window, per_s in arriving.peak_per_s.items())
    return f" in {arriving.duration_s:,.0f} s: {arriving.per_s:,.3g}/s{burstiness}" + (
        f"; peaks {peaks}" if peaks else ""
    )


def _kinds(name: str, counts: Mapping[str, int]) -> Iterator[str]:
    if counts:
        shown = [f"{kind or 'none'} ({count:,})" for kind, count in list(counts.items())[:_MOST_KINDS]]
        more = len(counts) - len(shown)
        yield f"{name}: " + ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _spreads(document: TraceInfo) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("mean", "P10", "P50", "P90", "P99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    figures = document.statistics
    _row(table, "prompt tokens", figures.prompt_tokens)
    _row(table, "output tokens", figures.output_tokens)
    sessions = figures.sessions
    if sessions is not None:
        _row(table, f"requests of {_count(sessions.count, 'session')}", sessions.requests)
        _row(table, _gap_name(sessions), sessions.gap_s)
    if document.observed is not None:
        _row(table, "observed TTFT, ms", document.observed.ttft_ms)
        _row(table, "observed TPOT, ms", document.observed.tpot_ms)
        _row(table, "observed E2E, ms", document.observed.e2e_ms)
    return table


def _gap_name(sessions: Sessions) -> str:
    return f"pause before {_count(sessions.following, 'follow-up')}, s"


def _row(table: Table, name: str, spread: Spread | None) -> None:
    if spread is not None:
        values = (spread.mean, spread.p10, spread.p50, spread.p90, spread.p99, spread.max)
        table.add_row(name, *(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in values))


def _print_reuse(console: Console, reuse: ReuseFigures, sessions: bool) -> None:
    own = f", {_percent(reuse.same_session_share)} last in the same session" if sessions else ""
    console.print(
        f"prefixes, in blocks of {reuse.block_tokens} tokens: {_percent(reuse.share)} of prompt tokens came "
        f"before{own};",
        f"all different blocks are {_tokens(reuse.distinct_tokens)} tokens",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("one LRU cache of", no_wrap=True)
    table.add_column("finds", justify="right", no_wrap=True)
    for size, share in reuse.share_by_cache_tokens.items():
        table.add_row(f"{_tokens(size)} tokens", _percent(share))
    console.print(table)
    needed = ", ".join(
        f"{_percent(float(part))} of that in {_tokens(size)}" for part, size in reuse.cache_tokens_for.items()
    )
    console.print(f"cache needed: {needed} tokens")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace(".0 %", " %")


def _tokens(count: int) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            return f"{count / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return str(count)
