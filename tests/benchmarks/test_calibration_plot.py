"""The drawing of what the cost policy predicted beside what came true."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from harness.calibration_plot import calibration_svg, draw

RIGHT = [[float(ms), ms * 0.9, float(ms), ms * 1.1] for ms in (10, 100, 1_000)]
TOO_LITTLE = [[float(ms), ms * 1.8, ms * 2.0, ms * 2.2] for ms in (10, 100, 1_000)]


def lines(svg: str) -> list[list[tuple[float, float]]]:
    """Pixels of each line, in the order in which they are drawn."""
    root = ElementTree.fromstring(svg)
    found = [one.attrib["points"] for one in root.iter() if one.tag.endswith("polyline")]
    return [[tuple(map(float, point.split(","))) for point in points.split()] for points in found]  # type: ignore[misc]


def test_what_is_predicted_rightly_lies_on_the_last_line_and_what_takes_longer_above() -> None:
    right, longer, diagonal = lines(calibration_svg("ttft", {"right": RIGHT, "longer": TOO_LITTLE}))
    (x1, y1), (x2, y2) = diagonal[0], diagonal[-1]

    def above(x: float, y: float) -> float:
        return y1 + (x - x1) * (y2 - y1) / (x2 - x1) - y

    assert [above(*point) for point in right] == pytest.approx([0.0] * 3, abs=0.3)
    assert all(above(*point) > 10 for point in longer)


def test_the_first_seed_of_each_traffic_is_drawn(tmp_path: Path) -> None:
    tables = {"ttft": RIGHT, "decode": [[0.0, 0.0, 0.0, 0.0], *TOO_LITTLE]}
    runs = [
        {"run": {"traffic": "chats & more", "seed": 1}, "calibration": {name: [] for name in tables}},
        {"run": {"traffic": "chats & more", "seed": 0}, "calibration": tables},
        {"run": {"traffic": "other", "seed": 0}},
    ]
    (tmp_path / "cost_quality.json").write_bytes(msgspec.json.encode({"runs": runs}))
    ttft, decode = (path.read_text() for path in draw(tmp_path, tmp_path / "images"))
    assert [len(line) for line in lines(ttft)] == [3, 2]
    assert [len(line) for line in lines(decode)] == [4, 2]
    assert "other" not in ttft
