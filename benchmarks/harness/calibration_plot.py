"""What the cost policy predicted and what came true, drawn: docs/images/cost-calibration-ttft.svg and -decode.svg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness import report
from harness.plot_file import standing_alone
from pointsman.app.charts.axis import axis_over, show_ms
from pointsman.app.charts.svg import Series, line_chart

IMAGES = report.ROOT / "docs" / "images"
TITLES = {"ttft": "Time to the first token", "decode": "From the first token to the last"}
_LEAST_MS = 1.0
"""Less is drawn as that: the axes are logarithmic."""

Tenths = Sequence[Sequence[float]]
"""A row a tenth of the requests: median predicted; 10th percentile, median and 90th percentile of what came."""


def calibration_svg(name: str, of_traffic: Mapping[str, Tenths]) -> str:
    """A line a traffic: medians, with the band from the 10th to the 90th percentile; the last: where all is right."""
    series = []
    for number, (traffic, tenths) in enumerate(of_traffic.items()):
        rows = [[max(_LEAST_MS, value) for value in row] for row in tenths]
        points = [(said, p50) for said, _, p50, _ in rows]
        series.append(Series(traffic, number, points, [(said, p10, p90) for said, p10, _, p90 in rows]))
    x = axis_over((said for one in series for said, _ in one.points), "predicted", log=True, show=show_ms)
    seen = [value for one in series for _, *both in one.band for value in both]
    y = axis_over(seen, "observed", log=True, show=show_ms)
    right = [max(x.low, y.low), min(x.high, y.high)]
    labels = [*of_traffic, "as predicted"]
    series.append(Series(labels[-1], len(of_traffic), [(value, value) for value in right]))
    return standing_alone(line_chart(f"{TITLES[name]}: predicted and observed", x, y, series, dots=True), labels)


def draw(results: Path = report.RESULTS, images: Path = IMAGES) -> list[Path]:
    """Draw the last full run, of each traffic its first seed. Raises FileNotFoundError when there is none."""
    runs = msgspec.json.decode((results / "cost_quality.json").read_bytes())["runs"]
    drawn = []
    for name in TITLES:
        of_traffic: dict[str, Tenths] = {}
        for run in sorted(runs, key=lambda one: one["run"]["seed"]):
            if "calibration" in run:
                of_traffic.setdefault(run["run"]["traffic"], run["calibration"][name])
        path = images / f"cost-calibration-{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(calibration_svg(name, of_traffic) + "\n", encoding="utf-8")
        drawn.append(path)
    return drawn
