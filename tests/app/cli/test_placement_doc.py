"""The page on files of placement is made from the types, and complete."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pointsman.app.cli.placement_doc import document, main
from pointsman.edge.manifests import cluster_spec, deployment_spec, queue_file

PAGE = Path(__file__).parents[3] / "docs" / "placement-files.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()


SECTIONS = [
    each
    for room in (cluster_spec, deployment_spec, queue_file)
    for each in vars(room).values()
    if isinstance(each, type) and issubclass(each, msgspec.Struct)
]


@pytest.mark.parametrize("section", SECTIONS)
def test_each_key_has_a_row_that_says_something(section: type[msgspec.Struct]) -> None:
    rows = document().splitlines()
    for field in msgspec.structs.fields(section):
        row = next(row for row in rows if row.startswith(f"| `{field.encode_name}` |"))
        assert not row.endswith("|  |")


def test_an_old_page_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    assert main(["--check", str(page)]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    assert main([]) == 2
