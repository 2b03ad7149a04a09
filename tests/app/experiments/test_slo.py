"""SLOs are read, written and applied; whoever got no whole answer misses them."""

from __future__ import annotations

import pytest

from pointsman.app.experiments.slo import Slo, parse_slo
from pointsman.core.model.errors import ConfigError

from .conftest import NAN, MakeOutcome


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft=2s", Slo(ttft_ms=2_000)),
        ("ttft=2s,tpot=50ms", Slo(2_000, 50)),
        ("ttft=1234567ms,tpot=12.3456789ms", Slo(1_234_567, 12.3456789)),
        (" e2e = 1.5m , tpot=.5s", Slo(None, 500, 90_000)),
    ],
)
def test_read_and_written(text: str, slo: Slo) -> None:
    assert parse_slo(text) == slo
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "'' is no limit"),
        ("ttft", "'ttft' is no limit"),
        ("itl=5ms", "'itl=5ms' is no limit"),
        ("ttft=2", "'2' is no duration; write a number and a unit"),
        ("ttft=-2s", "'-2s' is no duration"),
        ("ttft=0s", "'0s' is no duration"),
        ("ttft=2 h", "'2 h' is no duration"),
        ("ttft=1s,ttft=2s", "ttft is given twice"),
    ],
)
def test_what_is_none(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"^--slo") as caught:
        parse_slo(text)
    assert part in str(caught.value)


def test_who_meets_it(make_outcome: MakeOutcome) -> None:
    outcome = make_outcome([100.0, 2_000.0, 2_001.0, NAN], tpot_ms=20.0)
    assert Slo().met(outcome).tolist() == [True, True, True, False]
    assert Slo(ttft_ms=2_000).met(outcome).tolist() == [True, True, False, False]
    assert Slo(tpot_ms=19).met(outcome).tolist() == [False] * 4
    assert Slo(e2e_ms=300).met(outcome).tolist() == [True, False, False, False]


def test_an_answer_that_was_cut_short_is_not_good(make_outcome: MakeOutcome) -> None:
    assert Slo(ttft_ms=1_000).met(make_outcome([100.0], output_tokens=10, asked_tokens=11)).tolist() == [False]


def test_an_answer_of_one_token_has_no_tpot_to_miss(make_outcome: MakeOutcome) -> None:
    assert Slo(tpot_ms=1).met(make_outcome([100.0], output_tokens=1)).tolist() == [True]
