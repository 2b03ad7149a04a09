"""`pointsman status`: what a running front end knows."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.app.cli.admin_client import admin_url_option, call
from pointsman.app.cli.output import json_option, write_json
from pointsman.edge.serving.status import EngineReport, RequestStatus, Status, WorkerStatus

READY = "ready"
_STATE_STYLE = {READY: "green", "draining": "yellow", "not_probed": "yellow"}
_PIPE_WIDTH = 200
"""Columns where no terminal says how wide it is."""


@click.command()
@admin_url_option
@json_option
def status(admin_url: str, json_file: str | None) -> int:
    """Show workers, their load, cache hits, and why one gets no requests.

    running: our requests + others'; cached: share of prompt tokens that the engine had cached; predicted and reported:
    cached tokens that were expected, and those that the engine counted.
    """
    answer = call("GET", admin_url, "/v1/status", Status)
    if json_file is not None:
        write_json(answer, json_file)
        return 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    policy = answer.policy if answer.policy == answer.policy_in_force else f"{answer.policy} → {answer.policy_in_force}"
    console.print(f"pointsman {answer.version}, policy [bold]{escape(policy)}[/bold]")
    console.print(_models(answer.models))
    console.print(_workers(answer.workers))
    _print_reasons(console, answer)
    console.print(_requests(answer.requests))
    return 0


def _models(models: dict[str, list[str]]) -> str:
    if not models:
        return "models: none yet"
    return "models: " + ", ".join(f"{escape(model)} ({len(workers)})" for model, workers in sorted(models.items()))


def _workers(workers: list[WorkerStatus]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("worker", "kind", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("running", "queued", "KV", "requests", "failed", "cached", "predicted", "reported"):
        table.add_column(name, justify="right", no_wrap=True)
    for worker in workers:
        style = _STATE_STYLE.get(worker.state, "red")
        table.add_row(
            escape(worker.id),
            worker.kind,
            f"[{style}]{escape(worker.state)}[/{style}]",
            f"{worker.running} + {worker.foreign}" if worker.foreign else str(worker.running),
            str(worker.queued),
            _percent(worker.kv_use),
            str(worker.requests_total),
            str(worker.failed_total),
            _percent(worker.cached_share),
            str(worker.predicted_cached_tokens),
            str(worker.reported_cached_tokens),
        )
    return table


def _print_reasons(console: Console, answer: Status) -> None:
    """Why a worker gets no requests, and which engine is no worker at all."""
    for worker in answer.workers:
        if worker.state != READY:
            console.print(f"[red]{escape(f'{worker.id}: {worker.state}: {worker.reason}')}[/red]")
    known = {worker.url for worker in answer.workers}
    for engine in answer.engines:
        if engine.url not in known:
            console.print(f"[red]{escape(_engine(engine))}[/red]")


def _engine(engine: EngineReport) -> str:
    return f"{engine.name} ({engine.url}): {engine.state}: {engine.reason}"


def _requests(requests: RequestStatus) -> str:
    ttft = "–" if requests.ttft_mean_ms is None else f"{requests.ttft_mean_ms:.0f} ms"
    return (
        f"requests: {requests.running} running, {requests.waiting} waiting, {requests.finished_total} finished, "
        f"{requests.failed_total} failed, {requests.cancelled_total} cancelled, {requests.retries_total} retries; "
        f"mean TTFT {ttft}, cached {_percent(requests.cached_share)}"
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
