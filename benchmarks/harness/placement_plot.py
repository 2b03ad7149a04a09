"""How the time to place grows, drawn from the results there are: docs/images/placement-growth.svg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness import report
from harness.plot_file import standing_alone
from pointsman.app.charts.axis import Axis, axis_over
from pointsman.app.charts.svg import Mark, Series, line_chart

PLOT = report.ROOT / "docs" / "images" / "placement-growth.svg"
SHAPES = ("64×8", "512×8", "prefill 8×4, decode 16×8", "prefill 256×1, decode 256×2", "four roles of 16")
BARS_S = (1.0, 5.0)


def growth_svg(summary: Mapping[str, Mapping[str, Any]], use: str = "50% use") -> str:
    """Median seconds over nodes of a cluster in use, a line a gang, both axes logarithmic."""
    rows = {shape: summary[f"{shape}, {use}"]["median_s"] for shape in SHAPES}
    series = [
        Series(shape, number, [(float(nodes), seconds) for nodes, seconds in row.items()])
        for number, (shape, row) in enumerate(rows.items())
    ]
    nodes = tuple(sorted({at for line in series for at, _ in line.points}))
    x = Axis("nodes", nodes[0] / 1.1, nodes[-1] * 1.1, log=True, show="{:,.0f}".format, wanted_ticks=nodes)
    seconds = [*(value for line in series for _, value in line.points), *BARS_S]
    y = axis_over(seconds, "median time to place", log=True, show=lambda value: f"{value:g} s")
    marks = [Mark(f"512×8: at most {bar:g} s", y=bar) for bar in BARS_S]
    return standing_alone(line_chart(f"Time to place a gang, {use}", x, y, series, marks=marks), SHAPES)


def draw(results: Path = report.RESULTS, plot: Path = PLOT) -> Path:
    """Draw the last full run. Raises FileNotFoundError when there is none."""
    rows = msgspec.json.decode((results / "placement_scale.json").read_bytes())
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(growth_svg(rows["summary"]) + "\n", encoding="utf-8")
    return plot
