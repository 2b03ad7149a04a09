"""How verbs print: a table for people, or `--json [FILE]` for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from pointsman.core.model.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])

STDOUT = "-"


def json_option(command: F) -> F:
    """The option `--json [FILE]` of every verb that prints a table."""
    return click.option(
        "--json",
        "json_file",
        metavar="[FILE]",
        is_flag=False,
        flag_value=STDOUT,
        default=None,
        help="JSON instead of a table, to FILE or to stdout.",
    )(command)


def write_json(document: object, file: str) -> None:
    """Write a document as indented JSON. Raises ConfigError when the file can't be written."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    if file == STDOUT:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    try:
        Path(file).write_bytes(text)
    except OSError as error:
        raise ConfigError(f"--json {file}: can't be written: {error.strerror}") from error
