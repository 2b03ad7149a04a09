"""How verbs print: a table for people, or `--json [FILE]` for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
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


def check_files(written: Mapping[str, Path | str | None], read: Mapping[str, Path | None]) -> None:
    """Before hours are spent: files can be written and are none of those read, by option. Raises ConfigError."""
    taken = {file.resolve(): option for option, file in read.items() if file is not None}
    for option, file in written.items():
        if file is None or file == STDOUT:
            continue
        path = Path(file)
        if path == Path(STDOUT):
            raise ConfigError(f"{option} -: stdout is for the table or --json; name a file")
        if path.is_dir():
            raise ConfigError(f"{option} {file}: is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ConfigError(f"{option} {file}: there is no folder {path.parent}; make it first")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"{option} {file}: can't be written: no permission")
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise ConfigError(f"{option} {file}: is the file of {other} too; name another one to write")


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
