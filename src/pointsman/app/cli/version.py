"""`pointsman version`."""

from __future__ import annotations

import click

from pointsman import __version__


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"pointsman {__version__}")
