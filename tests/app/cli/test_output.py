"""`--json [FILE]`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pointsman.app.cli.output import json_option, write_json
from pointsman.core.model.errors import ConfigError


@click.command()
@json_option
def show(json_file: str | None) -> None:
    if json_file is None:
        click.echo("a table")
    else:
        write_json({"a": [1, 2]}, json_file)


def test_table_stdout_and_file(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(show, []).output == "a table\n"
    assert json.loads(runner.invoke(show, ["--json"]).output) == {"a": [1, 2]}
    file = tmp_path / "out.json"
    assert runner.invoke(show, ["--json", str(file)]).output == ""
    assert json.loads(file.read_text()) == {"a": [1, 2]}


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--json .*: can't be written: Is a directory"):
        write_json({}, str(tmp_path))
