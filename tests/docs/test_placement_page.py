"""What docs/placement.md shows of `pointsman place` is what it prints, but for which of equal places is taken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pointsman.app.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "placement.md"


def _alike(text: str) -> list[str]:
    """Without times, numbers of nodes and domains, and the picture: of equally good places any may be shown."""
    lines = re.sub(r"\(\d+\.\d\d s\)", "(s)", text).splitlines()
    kept = [line for line in lines if not re.match(r"rack-\d+$|  (?:east|west)-", line)]
    return [re.sub(r"\b(east|west|rack|zone|nvswitch)-\d+", r"\1-N", line) for line in kept]


@pytest.mark.parametrize("name", ["example", "whynot"])
def test_printed_output_is_what_is_printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"<!-- begin {name} -->\n```\n\$ pointsman (.*?)\n(.*?)```", text, re.DOTALL)
    assert block is not None
    monkeypatch.chdir(ROOT / "examples" / "placement")
    monkeypatch.setenv("COLUMNS", "140")
    main.run(shlex.split(block[1]))
    assert _alike(capsys.readouterr().out) == _alike(block[2])


def test_the_example_is_the_file() -> None:
    (shown,) = re.findall(r"```yaml\n(name: chat-70b\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = (ROOT / "examples" / "placement" / "chat-70b.yaml").read_text(encoding="utf-8")
    without = {"model", "queue"}

    def lines(text: str) -> list[str]:
        found = [re.sub(r"\s*#.*", "", line) for line in text.splitlines()]
        return [line for line in found if line and line.partition(":")[0] not in without]

    assert lines(shown) == lines(file)


def _cells(text: str, row: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_figures_in_sentences_are_those_of_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sentences = " ".join(re.split(r"<!-- end placement_links -->", text)[1].split())
    rows = [_cells(text, f"32,000, {where}") for where in ("node", "rack", "zone")]
    handover = [round(float(row[3])) for row in rows]
    first = [row[1] for row in rows]
    assert (
        "P50 of the handover: {} ms in a node, {} ms across racks, {} ms across zones; "
        "of the first token {}, {} and {} ms".format(*handover, *first)
        in sentences
    )
    day = text.split("A day at load 1.1")[1].split("<!-- end placement_cluster -->")
    waits, lost = _cells(day[0], "P99 wait"), _cells(day[0], "lost GPU h")
    after = " ".join(day[1].split())
    assert f"(P99 {waits[0]}, packed pod by pod {waits[1]})" in after
    ours, theirs = (each.removesuffix(" h") for each in lost[:2])
    assert f"{ours} GPU hours of start-ups of pods that gave way to others ({theirs})" in after
