from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import (
    Arrivals,
    AtOnce,
    Bursts,
    Constant,
    Diurnal,
    Gamma,
    Poisson,
    Stage,
    Staged,
)
from pointsman.core.workload.generators.distributions import (
    Distribution,
    Exponential,
    Fixed,
    Histogram,
    Lognormal,
    Uniform,
)
from pointsman.core.workload.generators.spec import describe, parse_arrivals, parse_distribution


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("5", Poisson(5)),
        ("2.5", Poisson(2.5)),
        ("poisson:5", Poisson(5)),
        ("gamma:5,3", Gamma(5, 3)),
        ("constant:0.1", Constant(0.1)),
        ("at-once", AtOnce()),
        ("staged:3x20,10x20", Staged((Stage(3, 20), Stage(10, 20)))),
        ("staged:3x20,pause=60", Staged((Stage(3, 20),), 60)),
        ("bursts:1,20,60,5", Bursts(1, 20, 60, 5)),
        ("diurnal:5,1.8", Diurnal(5, 1.8)),
        ("diurnal:5,1.8,3600", Diurnal(5, 1.8, 3600)),
    ],
)
def test_arrivals(text: str, arrivals: Arrivals) -> None:
    assert parse_arrivals(text) == arrivals


_few = st.floats(0.125, 1e6)


@given(
    st.one_of(
        st.builds(Fixed, _few),
        st.builds(Exponential, _few),
        st.builds(lambda low, more: Uniform(low, low + more), _few, _few),
        st.builds(Lognormal, _few, _few),
        st.builds(lambda mean, low, more: Lognormal(mean, 0.5, low, low + more), _few, _few, _few),
        st.builds(Histogram, st.dictionaries(_few, _few, min_size=1)),
    )
)
def test_a_text_makes_an_equal_distribution(distribution: Distribution) -> None:
    assert parse_distribution(describe(distribution)) == distribution


@pytest.mark.parametrize(
    "text", ["", "x", "poisson:", "gamma:1", "gamma:1,2,3", "staged:", "staged:3", "staged:3x", "at-once:1", "1.2.3"]
)
def test_what_are_no_arrivals(text: str) -> None:
    with pytest.raises(TraceError, match="are no arrivals; expected poisson:PER_S"):
        parse_arrivals(text)


@pytest.mark.parametrize(
    "text", ["", "x", "uniform:1", "lognormal:1,2,3", "histogram:1", "histogram:1=2=3", "-5", "inf"]
)
def test_what_is_no_distribution(text: str) -> None:
    with pytest.raises(TraceError, match="is no distribution; expected NUMBER"):
        parse_distribution(text)


def test_a_value_with_two_weights_is_refused() -> None:
    with pytest.raises(TraceError, match="the value 10 is given twice"):
        parse_distribution("histogram:10=1,20=2,10.0=5")


@pytest.mark.parametrize("text", ["poisson:0", "gamma:1,-1", "diurnal:1,3"])
def test_numbers_that_cannot_be_are_refused_by_name(text: str) -> None:
    with pytest.raises(TraceError, match=r"arrivals (at a rate|with)|a peak"):
        parse_arrivals(text)
