from __future__ import annotations

import pytest

from harness import report
from harness.processes import BenchmarkError
from harness.subjects import installed

PAGE = "before\n<!-- begin relay -->\nold\n<!-- end relay -->\nafter\n"


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = report.replace_section(PAGE, "relay", "\nnew | table\n")
    assert page == "before\n<!-- begin relay -->\nnew | table\n<!-- end relay -->\nafter\n"
    assert report.replace_section(page, "relay", "old") == PAGE


def test_missing_markers_are_named() -> None:
    with pytest.raises(BenchmarkError, match="<!-- begin streams -->"):
        report.replace_section(PAGE, "streams", "x")


def test_the_page_has_the_markers_of_every_benchmark() -> None:
    for name in ("relay", "streams", "decision", "local_fleet"):
        assert report.replace_section(report.PAGE.read_text(), name, "x")


def test_a_table_aligns_numbers() -> None:
    assert report.table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert [report.number(1234.56), report.number(1.234, 2), report.number(None)] == ["1,235", "1.23", "–"]


def test_noise_is_called_noise() -> None:
    assert "not quiet" not in report.noise_line(0.04)
    assert "not quiet" in report.noise_line(0.4)


def test_unknown_front_ends_are_refused_by_name() -> None:
    with pytest.raises(BenchmarkError, match=r"unknown subject nginx; known are: pointsman round_robin"):
        installed(["nginx"])
