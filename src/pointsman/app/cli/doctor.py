"""`pointsman doctor`: checks of what configurations silently get wrong."""

from __future__ import annotations

import click

from pointsman.app.cli.doctor_links import links


@click.group()
def doctor() -> None:
    """Checks of what configurations silently get wrong: links between machines."""


doctor.add_command(links)
