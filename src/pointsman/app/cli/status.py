"""`pointsman status`: what a running front end knows."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from pointsman.app.cli.admin_client import admin_url_option, call, front_ends
from pointsman.app.cli.output import json_option, write_json
from pointsman.app.cli.status_table import print_status
from pointsman.core.model.errors import EngineError
from pointsman.edge.serving.status import Status

_PIPE_WIDTH = 200
"""Columns where no terminal says how wide it is."""


class FrontEndStatus(Status, kw_only=True):
    """The document of one front end."""

    admin_url: str = ""
    """Where it was asked."""


@click.command()
@admin_url_option
@json_option
def status(admin_url: str, json_file: str | None) -> int:
    """Show workers, their load, cache hits, and why one gets no requests.

    health: well, or by yes, no and ? (not known, which is not no): its process answers, it accepts work, tokens flow;
    running: our requests + those of nobody that we know; others: those of other front ends of this fleet; KV
    events: what is known by the engine's own word, and how far it can be relied on; cached: share of prompt tokens
    that the engine had cached; predicted and reported: cached tokens that were expected, and those that the engine
    counted; drift: their difference lately, of the prompts; time error: how far predicted step times were off
    lately, and ×N where the worker takes N times as long as those alike.

    The front ends of one `serve --processes` are shown one after the other, each with what went through it; as JSON
    they are a list.
    """
    urls = front_ends(admin_url)
    answers = [_ask(urls[0])]
    failed: list[str] = []
    for url in urls[1:]:
        try:
            answers.append(_ask(url))
        except EngineError as error:
            failed.append(str(error))
    if json_file is not None:
        write_json(answers if len(urls) > 1 else answers[0], json_file)
    else:
        _print(answers, len(urls))
    if failed:
        raise EngineError("; ".join(failed))
    return 0


def _ask(admin_url: str) -> FrontEndStatus:
    answer = call("GET", admin_url, "/v1/status", FrontEndStatus)
    answer.admin_url = admin_url
    return answer


def _print(answers: list[FrontEndStatus], count: int) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    for number, answer in enumerate(answers):
        if number:
            console.print()
        print_status(console, answer, f" at {answer.admin_url} (of {count} front ends)" if count > 1 else "")
