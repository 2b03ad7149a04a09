"""What `pointsman simulate` prints and writes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.app.cli.output import write_json
from pointsman.app.experiments.conduct import Results
from pointsman.app.experiments.csv_rows import HEADER, csv_rows
from pointsman.app.experiments.detail import detail_point
from pointsman.app.experiments.document import PointSummary, Summary, Value
from pointsman.app.experiments.measures import MEASURES, shown, spread
from pointsman.app.experiments.report.page import html_report
from pointsman.core.model.errors import ConfigError

_HIDDEN = {"busy_cv", "token_imbalance", "queue_growth", "goodput_requests_s"}
"""Measures for JSON, CSV and the report: in the table they would hide the others."""
_IF_ANY = {"failed_share", "apart_share", "fetched_share"}
"""Measures that are shown where they are not 0."""


_SWEPT = (
    "goodput_share",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "e2e_p99_ms",
    "hit_share",
    "apart_share",
    "output_tokens_s_gpu",
)
_UNBOUNDED = 10_000
_PIPE_WIDTH = 140
"""Columns where the output is no terminal, so that nobody has to guess what was cut off."""


def write_and_print(
    summary: Summary, results: Results, json_file: str | None, csv_file: Path | None, html_file: Path | None
) -> None:
    """Everything that is wanted. Raises ConfigError when a file can't be written, after all that can was."""
    writers = (
        partial(_write_csv, summary, csv_file),
        partial(_write_html, summary, results, html_file),
        partial(_print_results, summary, json_file),
    )
    failed = []
    for write in writers:
        try:
            write()
        except ConfigError as error:
            failed.append(str(error))
    if failed:
        raise ConfigError("; ".join(failed))


def _write_csv(summary: Summary, csv_file: Path | None) -> None:
    if csv_file is None:
        return
    try:
        with csv_file.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            writer.writerows(csv_rows(summary))
    except OSError as error:
        raise ConfigError(f"--csv {csv_file}: can't be written: {error.strerror}") from error


def _write_html(summary: Summary, results: Results, html_file: Path | None) -> None:
    if html_file is None:
        return
    try:
        html_file.write_text(html_report(summary, results), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {html_file}: can't be written: {error.strerror}") from error


def _print_results(summary: Summary, json_file: str | None) -> None:
    """The document, or the table and the verdict."""
    if json_file is not None:
        write_json(summary, json_file)
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, _PIPE_WIDTH)
        console.print(_first_line(summary))
        if summary.sweep is None:
            _print_point(console, summary.points[0])
        else:
            _print_sweep(console, summary)
    if summary.missing:
        click.echo(f"interrupted; not finished: {'; '.join(summary.missing)}", err=True)


def _first_line(summary: Summary) -> str:
    workload, base = summary.workload, summary.points[0]
    sweep = summary.sweep
    rate = f"{base.requests_s:.3g}/s" if base.requests_s else "all at once"
    load = f"{base.clients} clients" if base.clients else rate
    fleet = f"{escape(base.fleet)}, {load}" if sweep is None else f"sweep of {sweep.axis}"
    seeds = f"{summary.seeds} seed{'' if summary.seeds == 1 else 's'}"
    slo = "" if summary.slo is None else f", SLO {escape(summary.slo)}"
    return f"{escape(workload.name)}, {workload.requests:,} requests, {fleet}, {seeds}{slo}"


def _print_point(console: Console, point: PointSummary) -> None:
    if point.policies:
        table = _measures_table(point, with_spread=True)
        fits = _width(console, table) <= console.width
        if not fits:
            table = _measures_table(point, with_spread=False)
        _print_table(console, table)
        if not fits and any(policy.runs[1:] for policy in point.policies):
            console.print("(There is no room for intervals; --json and --html have them.)")
    for sentence in point.verdict:
        console.print(escape(sentence))


def _measures_table(point: PointSummary, *, with_spread: bool) -> Table:
    table = _table("", justify="left")
    for policy in point.policies:
        table.add_column(escape(policy.policy), justify="right", no_wrap=True)
    for key, measure in MEASURES.items():
        values = [policy.metrics[key] for policy in point.policies]
        if key in _HIDDEN or all(value is None for value in values) or (key in _IF_ANY and not _any(values)):
            continue
        table.add_row(measure.title, *_cells(key, values, with_spread=with_spread))
    return table


def _print_sweep(console: Console, summary: Summary) -> None:
    sweep = summary.sweep
    assert sweep is not None
    keys = [key for key in _SWEPT if key != "goodput_share" or summary.slo is not None]
    shares = [policy.metrics["apart_share"] for point in summary.points for policy in point.policies]
    if not _any(shares):
        keys.remove("apart_share")
    table = _table(sweep.axis, justify="right")
    table.add_column("policy", no_wrap=True)
    for key in keys:
        table.add_column(MEASURES[key].title, justify="right", no_wrap=True)
    knees = {knee.policy: knee.value for knee in sweep.knees}
    for point in summary.points:
        columns = [[policy.metrics[key] for policy in point.policies] for key in keys]
        for number, policy in enumerate(point.policies):
            at_knee = knees.get(policy.policy) == point.value
            values = [shown(key, _plain(column[number])) for key, column in zip(keys, columns, strict=True)]
            name = point.name.partition("=")[2] if not number else ""
            table.add_row(escape(name), escape(policy.policy), *values, style="bold" if at_knee else "")
        table.add_section()
    _print_table(console, table)
    for knee in sweep.knees:
        console.print(escape(knee.text))
    point = summary.points[detail_point(summary)]
    if point.verdict:
        console.print(f"At {escape(point.name)}:")
    for sentence in point.verdict:
        console.print(f"  {escape(sentence)}")


def _table(first: str, justify: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, justify="right" if justify == "right" else "left", no_wrap=True)
    return table


def _print_table(console: Console, table: Table) -> None:
    """Whole, on a narrow terminal too: it folds lines, and no value loses digits."""
    usual = console.width
    console.width = max(usual, _width(console, table))
    console.print(table)
    console.width = usual


def _width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=_UNBOUNDED)).maximum


def _cells(key: str, values: list[Value | None], *, with_spread: bool) -> list[str]:
    """Each value with half its interval; the best one bold, unless all read alike."""
    texts = [shown(key, _plain(value)) for value in values]
    known = [value.value for value in values if value is not None]
    best = shown(key, (min if MEASURES[key].less_is_better else max)(known)) if len(set(texts)) > 1 else None
    cells = []
    for text, value in zip(texts, values, strict=True):
        half = f"[dim]{_spread(key, value)}[/dim]" if with_spread else ""
        cells.append(f"[bold]{text}[/bold]{half}" if text == best else f"{text}{half}")
    return cells


def _spread(key: str, value: Value | None) -> str:
    text = "" if value is None else spread(key, value.value, value.low, value.high)
    return f" {text}" if text else ""


def _plain(value: Value | None) -> float | None:
    return None if value is None else value.value


def _any(values: Iterable[Value | None]) -> bool:
    return any(value is not None and value.value for value in values)
