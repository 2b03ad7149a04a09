"""Charts as inline SVG: lines and bars. Colours are classes of the page, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from pointsman.app.charts.axis import Axis

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 18, 14, 44
COLOURS = 8
_LETTER = 7.0
"""Width of a letter of a tick, about."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `colour` is its number among those of the page."""

    label: str
    colour: int
    points: Sequence[tuple[float, float]]
    """Points whose y is nan break the line."""
    band: Sequence[tuple[float, float, float]] = ()
    """x, low, high: where it lies with 95 % confidence."""
    hints: Sequence[str] = ()
    """What each point says when the mouse is over it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A thin line across the chart with a word to it: a limit, a knee."""

    text: str
    x: float | None = None
    y: float | None = None
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with its interval where there is one."""

    label: str
    colour: int
    value: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class _Canvas:
    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "tick", anchor: str = "middle", more: str = "") -> None:
        self.parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
        )

    def svg(self) -> str:
        label = quoteattr(self.title)
        head = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label={label}>'
        return "\n".join([head, *self.parts, "</svg>"])


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], *, marks: Sequence[Mark] = (), dots: bool = False
) -> str:
    """Lines over two axes; with `dots` each point is drawn, else only those that no line leads to.

    Marks outside of the axes are left out. The mouse feels each point.
    """
    canvas = _Canvas(WIDTH, HEIGHT, title)
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    bottom = _TOP + height

    def px(value: float) -> float:
        return x.at(value, _LEFT, width)

    def py(value: float) -> float:
        return y.at(value, bottom, -height)

    _frame(canvas, x, y, px, py, bottom)
    # On the edge, a limit beyond it would look like one that is just met.
    seen = [mark for mark in marks if (mark.x is None or x.holds(mark.x)) and (mark.y is None or y.holds(mark.y))]
    for number, mark in enumerate(seen):
        _mark(canvas, mark, px, py, bottom - 8 - 14 * number)
    for each in series:
        if each.band:
            upper = [f"{px(at):.1f},{py(high):.1f}" for at, _, high in each.band]
            lower = [f"{px(at):.1f},{py(low):.1f}" for at, low, _ in reversed(each.band)]
            canvas.parts.append(f'<polygon class="band c{each.colour}" points="{" ".join(upper + lower)}"/>')
    for each in series:
        for run in _unbroken(each.points):
            path = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in run)
            canvas.parts.append(f'<polyline class="series c{each.colour}" points="{path}"/>')
    for each in series:
        alone = {run[0] for run in _unbroken(each.points) if len(run) == 1}
        for number, (at, value) in enumerate(each.points):
            if not math.isfinite(value):
                continue
            hint = each.hints[number] if each.hints else f"{each.label}: {y.show(value)} at {x.show(at)}"
            dot = f'<circle class="dot c{each.colour}" cx="{px(at):.1f}" cy="{py(value):.1f}" r="3.2"/>'
            dot = dot if dots or (at, value) in alone else ""
            canvas.parts.append(
                f'<g>{dot}<circle class="hit" cx="{px(at):.1f}" cy="{py(value):.1f}" r="7"/>'
                f"<title>{escape(hint)}</title></g>"
            )
    return canvas.svg()


def bar_chart(title: str, axis: Axis, bars: Sequence[Bar], *, marks: Sequence[Mark] = ()) -> str:
    """Horizontal bars, each with its value in words behind it."""
    row, left, right = 34, 128, 96
    height = _TOP + row * len(bars) + _BOTTOM
    canvas = _Canvas(WIDTH, height, title)
    width, bottom = WIDTH - left - right, height - _BOTTOM

    def px(value: float) -> float:
        return axis.at(value, left, width)

    for tick in axis.ticks(5):
        canvas.line(px(tick), _TOP, px(tick), bottom, "grid")
        canvas.text(px(tick), bottom + 16, axis.show(tick))
    canvas.text(left + width / 2, height - 8, axis.title, "title")
    for number, bar in enumerate(bars):
        top, middle = _TOP + row * number + 6, _TOP + row * number + row / 2
        canvas.text(left - 10, middle + 4, _short(bar.label), "name", "end")
        if not math.isfinite(bar.value):
            canvas.text(left + 6, middle + 4, bar.text, "value", "start")
            continue
        interval = (
            "" if bar.low is None else f", 95 % between {axis.show(_three(bar.low))} and {axis.show(_three(bar.high))}"
        )
        canvas.parts.append(
            f'<g><rect class="bar c{bar.colour}" x="{left}" y="{top}" width="{max(px(bar.value) - left, 1):.1f}" '
            f'height="{row - 12}" rx="2"/><title>{escape(f"{bar.label}: {bar.text}{interval}")}</title></g>'
        )
        end = px(bar.value)
        if bar.low is not None and bar.high is not None:
            low, end = px(bar.low), max(end, px(bar.high))
            canvas.line(low, middle, px(bar.high), middle, "whisker")
            for edge in (low, px(bar.high)):
                canvas.line(edge, middle - 4, edge, middle + 4, "whisker")
        canvas.text(end + 8, middle + 4, bar.text, "value", "start")
    for mark in marks:
        if mark.x is not None:
            canvas.line(px(mark.x), _TOP - 4, px(mark.x), bottom, "mark")
            canvas.text(px(mark.x), _TOP - 5, mark.text, "marktext", "middle")
    return canvas.svg()


def columns(title: str, y: Axis, rows: Sequence[tuple[str, int, Sequence[float]]], names: Sequence[str]) -> str:
    """Small columns, one row of them a series over the same scale: the load of each worker under each policy."""
    each_height, left, gap = 70, 128, 22
    height = _TOP + (each_height + gap) * len(rows) + 18
    canvas = _Canvas(WIDTH, height, title)
    width = WIDTH - left - _RIGHT
    for number, (label, colour, values) in enumerate(rows):
        top = _TOP + (each_height + gap) * number
        bottom = top + each_height
        canvas.text(left - 44, top + each_height / 2 + 4, _short(label), "name", "end")
        for tick in (0.0, y.high):
            level = y.at(tick, bottom, -each_height)
            canvas.line(left, level, WIDTH - _RIGHT, level, "grid")
            canvas.text(left - 6, level + 4, y.show(tick), "tick", "end")
        slot = width / max(len(values), 1)
        bar = max(min(slot * 0.72, 40.0), 0.8)
        for place, value in enumerate(values):
            level = y.at(value, bottom, -each_height)
            hint = f"{label}, {names[place]}: {y.show(_three(value))}"
            canvas.parts.append(
                f'<g><rect class="bar c{colour}" x="{left + slot * place + (slot - bar) / 2:.1f}" y="{level:.1f}" '
                f'width="{bar:.1f}" height="{max(bottom - level, 0.5):.1f}"/><title>{escape(hint)}</title></g>'
            )
    canvas.text(left + width / 2, height - 4, y.title, "title")
    return canvas.svg()


def _frame(canvas: _Canvas, x: Axis, y: Axis, px: object, py: object, bottom: float) -> None:
    assert callable(px)
    assert callable(py)
    for tick in y.ticks(5):
        canvas.line(_LEFT, py(tick), WIDTH - _RIGHT, py(tick), "grid")
        canvas.text(_LEFT - 8, py(tick) + 4, y.show(tick), "tick", "end")
    free_from = 0.0
    for tick in x.ticks(6):
        canvas.line(px(tick), bottom, px(tick), bottom + 4, "axis")
        text = x.show(tick)
        half = _LETTER * len(text) / 2
        if px(tick) - half >= free_from:
            canvas.text(px(tick), bottom + 17, text)
            free_from = px(tick) + half + _LETTER
    canvas.line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis")
    canvas.text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, x.title, "title")
    turned = f' transform="rotate(-90 12 {(_TOP + bottom) / 2:.0f})"'
    canvas.text(12, (_TOP + bottom) / 2, y.title, "title", more=turned)


def _mark(canvas: _Canvas, mark: Mark, px: object, py: object, text_y: float) -> None:
    assert callable(px)
    assert callable(py)
    kind = "mark" if mark.colour is None else f"mark c{mark.colour}"
    if mark.x is not None:
        at = px(mark.x)
        canvas.line(at, _TOP, at, HEIGHT - _BOTTOM, kind)
        left_half = at < WIDTH / 2
        canvas.text(at + (5 if left_half else -5), text_y, mark.text, "marktext", "start" if left_half else "end")
    if mark.y is not None:
        canvas.line(_LEFT, py(mark.y), WIDTH - _RIGHT, py(mark.y), kind)
        canvas.text(WIDTH - _RIGHT - 4, py(mark.y) - 4, mark.text, "marktext", "end")


def _unbroken(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _short(label: str, most: int = 16) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _three(value: float | None) -> float:
    return float("nan") if value is None else float(f"{value:.3g}")
