"""A chart of a report's page as a file of its own, with its colours and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#dd4477", "#66aa00")
_LEGEND_LINE = 16
_STYLE = """
svg { background: #fff; font: 12px sans-serif } .grid { stroke: #ddd } .axis { stroke: #555 }
.tick, .title, .marktext { fill: #333 } .series { fill: none; stroke-width: 2 } .hit { fill: transparent }
.mark { stroke: #888; stroke-dasharray: 4 3 } .band { opacity: .12 }
"""


def standing_alone(svg: str, labels: Sequence[str]) -> str:
    """The same drawing, complete; `labels`: of its series, by the number of their colour."""
    colours = "".join(
        f".series.c{number} {{ stroke: {colour} }} .dot.c{number}, .band.c{number} {{ fill: {colour} }}\n"
        for number, colour in enumerate(_COLOURS)
    )
    height = 300 + _LEGEND_LINE * len(labels) + 12
    legend = "".join(
        f'<line x1="64" x2="88" y1="{y - 4}" y2="{y - 4}" stroke="{_COLOURS[number]}" stroke-width="2"/>'
        f'<text x="96" y="{y}" class="tick">{escape(label)}</text>\n'
        for number, label in enumerate(labels)
        for y in [300 + _LEGEND_LINE * (number + 1)]
    )
    head, _, rest = svg.partition(">")
    head = head.replace("viewBox", 'xmlns="http://www.w3.org/2000/svg" viewBox', 1).replace("560 300", f"560 {height}")
    return f"{head}>\n<style>{_STYLE}{colours}</style>{rest.replace('</svg>', legend + '</svg>')}"
