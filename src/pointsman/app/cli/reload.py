"""`pointsman reload`: the configuration of running front ends, read again."""

from __future__ import annotations

import click
import msgspec

from pointsman.app.cli.admin_client import RefusedError, admin_url_option, call, front_ends
from pointsman.core.model.errors import EngineError
from pointsman.edge.serving.reload.reloader import ReloadReport


class _RollOver(msgspec.Struct):
    status: str


@click.command()
@click.option("--roll-over", is_flag=True, help="Replace the front ends of `serve --processes` one by one instead.")
@admin_url_option
def reload(roll_over: bool, admin_url: str) -> int:
    """Read the configuration again, at all front ends that belong together, while requests run.

    Keys that can't change while a front end runs are named. A file that can't be used changes nothing.
    """
    if roll_over:
        click.echo(call("POST", admin_url, "/v1/rollover", _RollOver).status)
        return 0
    refused: dict[str, list[str]] = {}
    failed = []
    for url in front_ends(admin_url):
        try:
            report = call("POST", url, "/v1/reload", ReloadReport)
        except RefusedError as error:
            refused.setdefault(error.message, []).append(url)
            continue
        except EngineError as error:
            failed.append(str(error))
            continue
        click.echo(f"{url}: changed: {', '.join(report.changed) or 'nothing'}")
        if report.needs_restart:
            click.echo(f"{url}: needs a restart (or --roll-over): {', '.join(report.needs_restart)}")
    failed[:0] = [f"{', '.join(urls)}: {reason}" for reason, urls in refused.items()]
    if failed:
        raise EngineError("; ".join(failed))
    return 0
