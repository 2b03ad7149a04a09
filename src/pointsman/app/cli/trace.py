"""`pointsman trace`: traces of traffic, looked at, made and changed."""

from __future__ import annotations

import click

from pointsman.app.cli.trace_change import convert, cut, scale
from pointsman.app.cli.trace_info import info
from pointsman.app.cli.trace_make import make
from pointsman.edge.traces.formats import FORMATS


@click.group()
def trace() -> None:
    """Traces of traffic: what they are like, made ones, parts and multiples of them (docs/traces.md)."""


@trace.command()
def formats() -> int:
    """List the formats that can be read."""
    width = max(len(name) for name in FORMATS)
    for name, known in FORMATS.items():
        click.echo(f"{name:<{width}}  {known.what}")
    return 0


for _command in (info, convert, make, scale, cut):
    trace.add_command(_command)
