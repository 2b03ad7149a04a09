"""Commands that documents print have the verbs and options that they show."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from pointsman.app.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))


def _commands(page: str) -> list[str]:
    """Each `pointsman …` of a page's blocks, with the lines that go on with it."""
    found = []
    for block in re.findall(r"```\w*\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
        lines = re.sub(r"\\\n\s*", " ", re.sub(r"\n\s+(?=\[--)", " ", block)).splitlines()
        found += [line.lstrip("$ ") for line in lines if re.match(r"(\$ )?pointsman [a-z]", line)]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_have_what_they_show(page: str) -> None:
    for line in _commands(page):
        # What is quoted is another command's (--make 'chat --arrivals 4'), what follows # or many spaces is comment.
        words = re.sub(r"'[^']*'", "QUOTED", re.split(r"\s#|\s{3,}(?![\[-])", line)[0]).split()[1:]
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group) and words and words[0].isalpha() and words[0].islower():
            inner = command.get_command(context, words.pop(0))
            assert inner is not None, line
            command, context = inner, click.Context(inner, parent=context)
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        asked = {option for word in words for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word)}
        assert asked <= known | {"--help"} or isinstance(command, click.Group), f"{line}: {sorted(asked - known)}"


def test_there_are_commands_to_look_at() -> None:
    assert len([line for page in PAGES for line in _commands(page)]) > 30
