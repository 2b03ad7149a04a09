"""Axes and charts of the report."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.app.charts.axis import (
    Axis,
    axis_over,
    show_ms,
    show_number,
    show_seconds,
    show_share,
)
from pointsman.app.charts.svg import Bar, Mark, Series, bar_chart, columns, line_chart
from pointsman.app.experiments.curves import QUANTILES, curves_of, mean_curves

from .conftest import NAN, MakeOutcome

POSITIVE = st.floats(1e-3, 1e9)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.booleans(), st.booleans())
def test_every_value_lies_on_its_axis(values: list[float], log: bool, from_zero: bool) -> None:
    axis = axis_over(values, "x", log=log, from_zero=from_zero)
    places = [axis.at(value, 10, 100) for value in sorted(values)]
    assert all(10 <= place <= 110 for place in places)
    assert places == sorted(places)
    ticks = axis.ticks()
    assert len(ticks) <= 8
    assert ticks == sorted(ticks)
    assert all(axis.low * 0.99 - 1e-9 <= tick <= axis.high * 1.01 for tick in ticks)


def test_ticks_are_round() -> None:
    assert Axis("x", 0, 97).ticks() == [0, 20, 40, 60, 80]
    assert Axis("x", 0, 1.06).ticks(5) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert Axis("x", 9, 1_100, log=True).ticks() == [10, 30, 100, 300, 1_000]
    assert Axis("x", 5, 5).ticks() == [5]


def test_an_axis_may_run_backwards() -> None:
    axis = Axis("rest", 1.0, 0.01, log=True)
    assert axis.at(1.0, 0, 100) == 0
    assert axis.at(0.1, 0, 100) == pytest.approx(50)
    assert axis.at(0.01, 0, 100) == pytest.approx(100)


def test_nothing_to_show() -> None:
    assert axis_over([], "x").ticks()
    assert axis_over([NAN, 0.0], "x", log=True).ticks()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (show_ms(50), "50 ms"),
        (show_ms(2_500), "2.5 s"),
        (show_seconds(90), "90 s"),
        (show_seconds(600), "10 min"),
        (show_seconds(0), "0 s"),
        (show_share(0.995), "99.5 %"),
        (show_number(12_345.0), "12,345"),
    ],
)
def test_ticks_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def parsed(chart: str) -> ElementTree.Element:
    found = ElementTree.fromstring(chart)
    for element in found.iter():
        for key, value in element.attrib.items():
            assert "nan" not in value or key == "aria-label", (element.tag, key, value)
    return found


def test_a_line_breaks_where_nothing_was_measured() -> None:
    series = Series("a & <b>", 3, [(0, 1), (1, 2), (2, NAN), (3, 1), (4, 2)], band=[(0, 0.5, 1.5), (1, 1.5, 2.5)])
    axis = Axis("x", 0, 4)
    chart = parsed(
        line_chart("t", axis, axis, [series], marks=[Mark("limit", y=3), Mark("knee", x=1, colour=2)], dots=True)
    )
    assert len(chart.findall("polyline")) == 2
    assert len(chart.findall("polygon")) == 1
    hints = [title.text for title in chart.iter("title")]
    assert hints == ["a & <b>: 1 at 0", "a & <b>: 2 at 1", "a & <b>: 1 at 3", "a & <b>: 2 at 4"]
    assert {"limit", "knee"} <= {text.text for text in chart.findall("text")}


def test_a_mark_beyond_the_axis_is_left_out() -> None:
    """On the edge it would look like a limit that is just met."""
    marks = [Mark("in", x=2), Mark("right", x=5), Mark("above", y=5), Mark("below", y=-1)]
    chart = parsed(line_chart("t", Axis("x", 0, 4), Axis("y", 4, 0), [], marks=marks))
    words = {text.text for text in chart.findall("text")}
    assert "in" in words
    assert not {"right", "above", "below"} & words


def test_a_point_that_no_line_leads_to_is_seen() -> None:
    series = Series("a", 0, [(0, 1), (1, NAN), (2, 1), (3, 2)])
    chart = parsed(line_chart("t", Axis("x", 0, 4), Axis("y", 0, 4), [series]))
    assert len([dot for dot in chart.iter("circle") if (dot.get("class") or "").startswith("dot")]) == 1


def test_bars_have_lengths_whiskers_and_words() -> None:
    bars = [Bar("a", 0, 10.0, "ten", 8.0, 12.0), Bar("b", 1, 5.0, "five"), Bar("c", 2, NAN, "–")]
    chart = parsed(bar_chart("t", Axis("x", 0, 20), bars))
    widths = [float(rect.get("width", "")) for rect in chart.iter("rect")]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert len([line for line in chart.findall("line") if line.get("class") == "whisker"]) == 3
    words = {text.text for text in chart.findall("text")}
    assert {"ten", "five", "–", "a", "b", "c"} <= words


def test_a_column_for_each_worker() -> None:
    chart = parsed(columns("t", Axis("x", 0, 1, show=show_share), [("kv", 0, [0.5, 1.0])], ["w0", "w1"]))
    heights = [float(rect.get("height", "")) for rect in chart.iter("rect")]
    assert heights[1] == pytest.approx(2 * heights[0])
    assert [title.text for title in chart.iter("title")] == ["kv, w0: 50 %", "kv, w1: 100 %"]


def test_curves(make_outcome: MakeOutcome) -> None:
    found = curves_of(make_outcome([*range(1, 101), NAN], busy_ms=(1_000.0, 2_000.0)))
    assert found.ttft_ms[0] == 1
    assert found.ttft_ms[-1] == 100
    assert found.ttft_ms[QUANTILES.index(0.5)] == pytest.approx(50.5)
    assert len(found.bins_ms) == len(found.ttft_p90_ms) == 5
    assert list(found.ttft_p90_ms) == sorted(found.ttft_p90_ms)
    assert found.busy_share == (0.25, 0.5)


def test_curves_where_nothing_came(make_outcome: MakeOutcome) -> None:
    found = curves_of(make_outcome([NAN, NAN]))
    assert found.ttft_ms == ()
    assert all(math.isnan(value) for value in found.ttft_p90_ms)
    assert mean_curves([found, found]).ttft_ms == ()


def test_mean_curves(make_outcome: MakeOutcome) -> None:
    one, other = (curves_of(make_outcome([value] * 50)) for value in (100.0, 300.0))
    mean = mean_curves([one, other])
    assert set(mean.ttft_ms) == {200.0}
    assert set(mean.ttft_p90_ms) == {200.0}


def test_mean_curves_of_runs_with_more_and_fewer_requests(make_outcome: MakeOutcome) -> None:
    """What is slow at the end of the longer one is slow at the end of the mean."""
    short = curves_of(make_outcome([100.0] * 40))
    long = curves_of(make_outcome([100.0] * 80 + [900.0] * 20))
    mean = mean_curves([short, long])
    assert (len(short.bins_ms), len(long.bins_ms), len(mean.bins_ms)) == (2, 5, 2)
    assert mean.bins_ms[1] == pytest.approx((short.bins_ms[1] + long.bins_ms[3]) / 2)
    longer = curves_of(make_outcome([100.0] * 50 + [900.0] * 50))
    assert mean_curves([short, longer]).ttft_p90_ms == pytest.approx((100.0, 500.0))
