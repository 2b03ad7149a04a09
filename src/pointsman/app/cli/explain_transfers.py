"""What moving KV saved and lost, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.edge.decisions.transfers import Moved, TransferReport
from pointsman.edge.decisions.words import count, ms

_MOST_ROWS = 12
"""Of each table."""
_COLUMNS = (
    "requests",
    "saved",
    "lost",
    "mean alone*",
    "mean with*",
    "mean observed",
    "off",
    "transfer",
    "moved",
    "fell back",
)


def print_transfers(console: Console, report: TransferReport) -> None:
    """All of it."""
    console.print(f"[bold]{escape(report.sentence)}.[/bold]", soft_wrap=True)
    total = report.total
    if total.requests or total.unknown:
        hours = ((_hour(hour.at_ms), hour.moved) for hour in report.hours)
        console.print(_table("by hour", [*hours, ("all", total)]))
        for title, groups in (("by link", report.links), ("by workers", report.pairs)):
            console.print()
            console.print(_table(title, ((group.name, group.moved) for group in groups[:_MOST_ROWS])))
            if len(groups) > _MOST_ROWS:
                console.print(f"and {count(len(groups) - _MOST_ROWS, 'others')}; --json has them")
        console.print(
            "* predicted when it was decided: first tokens of the best worker alone, and with the KV moved; nobody can "
            "observe what would have been. saved and lost: that of the worker alone less what was observed. off: mean "
            "difference of what was observed and predicted with the KV moved. transfer: observed, by the engines' word "
            "or until the first token.",
            soft_wrap=True,
        )
        if total.unknown:
            console.print(
                f"{count(total.unknown, 'requests')} of these ended otherwise, or nothing was predicted of them: "
                "they count in requests, transfer, moved and fell back only",
                soft_wrap=True,
            )
    for reason, number in sorted(report.fallbacks.items(), key=lambda item: -item[1])[:_MOST_ROWS]:
        console.print(f"fell back, {count(number, 'times')}: {escape(reason)}", soft_wrap=True)
    told = report.not_moved
    if told.requests:
        why = "; ".join(f"{number:,} {reason}" for reason, number in sorted(told.reasons.items(), key=lambda i: -i[1]))
        console.print(
            f"not done though predicted to be cheaper: {count(told.requests, 'requests')}, {ms(told.cheaper_ms)} in "
            f"all ({escape(why)})",
            soft_wrap=True,
        )
    if report.in_spite:
        console.print(
            f"done though one worker alone was predicted to be cheaper: {count(report.in_spite, 'requests')} "
            "(routing.kv_transfer, or a header)",
            soft_wrap=True,
        )
    for note in report.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)


def _table(title: str, rows: Iterable[tuple[str, Moved]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, moved in rows:
        each = max(1, moved.requests)
        known = moved.requests > 0
        table.add_row(
            escape(name),
            f"{moved.requests + moved.unknown:,}",
            ms(moved.saved_ms),
            ms(moved.lost_ms),
            _mean(moved.alone_ms, each, known),
            _mean(moved.predicted_ms, each, known),
            _mean(moved.observed_ms, each, known),
            _mean(moved.predicted_off_ms, each, known),
            _mean(moved.transfer_ms, max(1, moved.transfers), moved.transfers > 0),
            _size(moved.bytes),
            f"{moved.fallbacks:,}",
        )
    return table


def _mean(total_ms: float, number: int, known: bool) -> str:
    return ms(total_ms / number) if known else "–"


def _size(size_bytes: int) -> str:
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= least:
            return f"{size_bytes / least:,.1f} {unit}"
    return f"{size_bytes} B"


def _hour(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:00")
