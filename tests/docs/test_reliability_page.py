"""The page on reliability says what the fault matrix holds."""

from __future__ import annotations

import re
from pathlib import Path

from support.virtual.faults import FAULTS, table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_the_table_of_faults_is_the_matrix() -> None:
    assert table() in PAGE, "copy what tests/support/virtual/faults.py makes (`table()`) into docs/reliability.md"


def test_there_are_figures_of_every_fault_and_they_keep_the_bounds() -> None:
    figures = dict(re.findall(r"^\| ([^|]+) \| ([0-9.]+) s \|$", PAGE, re.MULTILINE))
    assert figures.keys() == {fault.name for fault in FAULTS}
    assert all(float(figures[fault.name]) <= fault.ends_within_s for fault in FAULTS)


def test_files_that_it_names_exist() -> None:
    for name in re.findall(r"`((?:tests|scripts)/[^`]+)`", PAGE):
        assert list(ROOT.glob(name.split()[0])), name
