"""docs/traces.md shows what works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pointsman.app.cli import main
from pointsman.core.workload.reuse import reuse
from pointsman.edge.traces.access_log import parse_fields
from pointsman.edge.traces.formats import FORMATS, read_trace

PAGE = (Path(__file__).parents[2] / "docs/traces.md").read_text()


def test_every_format_is_described() -> None:
    table = PAGE.partition("## Formats that are read")[2].partition("**Bad rows.**")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(FORMATS)


def test_the_example_of_our_format_reads(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "example.jsonl"
    file.write_text(example)
    loaded = read_trace(file)
    assert not loaded.problems.describe()
    first, second = loaded.trace.requests
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2:4] == first.answer_block_ids
    assert reuse(loaded.trace).reusable_tokens.tolist() == [0, 64]


_MADE = re.findall(r"^pointsman (trace make .*)$", PAGE.partition("## Made workloads")[2], re.MULTILINE)


@pytest.mark.parametrize("line", _MADE)
def test_the_made_workloads_can_be_made(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(shlex.split(line)) == 0
    assert "requests in" in capsys.readouterr().out


def test_fields_of_access_logs() -> None:
    given = re.findall(r"--fields (\S+)", PAGE.split("### Fields of access logs")[1])
    assert parse_fields(tuple(given))["prompt"] == "tokens.in"
