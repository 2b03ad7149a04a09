"""Files that a verb reads where `-` may stand for stdin."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from pointsman.core.model.errors import ConfigError
from pointsman.edge.manifests.manifest_text import STDIN


def numbered(option: str, files: Sequence[Path]) -> dict[str, Path | None]:
    """Files of an option that may be given several times, each by a name of its own for messages."""
    return {f"{option} {number}" if len(files) > 1 else option: file for number, file in enumerate(files, 1)}


def check_piped(read: Mapping[str, Path | None]) -> None:
    """Before anything is read: at most one option, by its name, reads stdin. Says so if people have to type there.

    Raises ConfigError for a second one.
    """
    asking = [option for option, file in read.items() if file == STDIN]
    if len(asking) > 1:
        raise ConfigError(f"{asking[1]} -: stdin is for {asking[0]} already, and can be read once; name a file")
    if asking and sys.stdin is not None and sys.stdin.isatty():
        click.echo(f"note: {asking[0]} is read from the terminal; Ctrl-D ends it", err=True)
