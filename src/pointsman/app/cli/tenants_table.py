"""Keys and limits of one front end as lines and a table."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.edge.serving.tenants.report import AccountReport, TenancyReport, UseReport


def print_tenants(console: Console, report: TenancyReport) -> None:
    """All of it; those with least left come first."""
    keys = report.keys
    if keys is not None:
        expired = f", {keys.expired} of them expired" if keys.expired else ""
        console.print(f"API keys: {keys.keys} in {escape(keys.file)}{expired}")
        if keys.fault is not None:
            console.print(f"[red]API keys: those read before stay in force: {escape(keys.fault)}[/red]")
    if not report.accounts:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("limits of", no_wrap=True)
    for name in ("running", "requests left", "tokens left", "refused"):
        table.add_column(name, justify="right", no_wrap=True)
    for account in report.accounts:
        table.add_row(
            escape(account.subject),
            _running(account),
            _left(account.requests),
            _left(account.tokens),
            str(account.refused_total),
        )
    console.print(table)
    if report.more:
        console.print(f"and {report.more} more with more left")


def _running(account: AccountReport) -> str:
    return str(account.running) if account.concurrency is None else f"{account.running}/{account.concurrency}"


def _left(use: UseReport | None) -> str:
    """For example `940/1000 a minute`."""
    return "–" if use is None else f"{use.left:.0f}/{use.limit:.15g} a minute"
