"""How the time to place grows, drawn from the results there are: docs/images/placement-growth.svg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness import report
from pointsman.app.charts.axis import Axis, axis_over
from pointsman.app.charts.svg import Mark, Series, line_chart

PLOT = report.ROOT / "docs" / "images" / "placement-growth.svg"
SHAPES = ("64×8", "512×8", "prefill 8×4, decode 16×8", "prefill 256×1, decode 256×2", "four roles of 16")
BARS_S = (1.0, 5.0)
_COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#dd4477", "#66aa00")
_LEGEND_LINE = 16
_STYLE = """
svg { background: #fff; font: 12px sans-serif } .grid { stroke: #ddd } .axis { stroke: #555 }
.tick, .title, .marktext { fill: #333 } .series { fill: none; stroke-width: 2 } .hit { fill: transparent }
.mark { stroke: #888; stroke-dasharray: 4 3 }
"""


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
    return _alone(line_chart(f"Time to place a gang, {use}", x, y, series, marks=marks), SHAPES)


def draw(results: Path = report.RESULTS, plot: Path = PLOT) -> Path:
    """Draw the last full run. Raises FileNotFoundError when there is none."""
    rows = msgspec.json.decode((results / "placement_scale.json").read_bytes())
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(growth_svg(rows["summary"]) + "\n", encoding="utf-8")
    return plot


def _alone(svg: str, labels: tuple[str, ...]) -> str:
    """A chart of a page as a file of its own: with its colours and a legend below."""
    colours = "".join(
        f".series.c{number} {{ stroke: {colour} }} .dot.c{number} {{ fill: {colour} }}\n"
        for number, colour in enumerate(_COLOURS)
    )
    height = 300 + _LEGEND_LINE * len(labels) + 12
    legend = "".join(
        f'<line x1="64" x2="88" y1="{y - 4}" y2="{y - 4}" stroke="{_COLOURS[number]}" stroke-width="2"/>'
        f'<text x="96" y="{y}" class="tick">{label}</text>\n'
        for number, label in enumerate(labels)
        for y in [300 + _LEGEND_LINE * (number + 1)]
    )
    head, _, rest = svg.partition(">")
    head = head.replace("viewBox", 'xmlns="http://www.w3.org/2000/svg" viewBox', 1).replace("560 300", f"560 {height}")
    return f"{head}>\n<style>{_STYLE}{colours}</style>{rest.replace('</svg>', legend + '</svg>')}"
