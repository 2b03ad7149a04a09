"""Measures of a run against the same by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pointsman.app.experiments.measures import MEASURES, shown, spread
from pointsman.app.experiments.metrics import metrics_of
from pointsman.app.experiments.slo import Slo

from .conftest import NAN, MakeOutcome


def test_each_measure_is_there(make_outcome: MakeOutcome) -> None:
    assert metrics_of(make_outcome([100.0])).keys() == MEASURES.keys() | {"saturated"}


def test_latencies(make_outcome: MakeOutcome) -> None:
    ttfts = [float(number) for number in range(1, 102)]
    found = metrics_of(make_outcome([*ttfts, NAN], tpot_ms=30.0))
    assert found["ttft_mean_ms"] == pytest.approx(51)
    assert found["ttft_p50_ms"] == pytest.approx(51)
    assert found["ttft_p90_ms"] == pytest.approx(91)
    assert found["ttft_p99_ms"] == pytest.approx(100)
    assert found["tpot_p99_ms"] == pytest.approx(30)
    assert found["itl_p50_ms"] == pytest.approx(30, rel=0.01)
    assert found["e2e_mean_ms"] == pytest.approx(51 + 10 * 30)


def test_rates_are_over_the_whole_run(make_outcome: MakeOutcome) -> None:
    found = metrics_of(make_outcome([100.0, 100.0, 3_000.0, NAN]), Slo(ttft_ms=1_000))
    assert found["output_tokens_s"] == pytest.approx(3 * 11 / 4)
    assert found["total_tokens_s"] == pytest.approx(3 * 111 / 4)
    assert found["requests_s"] == pytest.approx(3 / 4)
    assert found["goodput_share"] == pytest.approx(2 / 4)
    assert found["goodput_requests_s"] == pytest.approx(2 / 4)
    assert found["failed_share"] == pytest.approx(1 / 4)
    assert found["hit_share"] == pytest.approx(0.4)


def test_workers(make_outcome: MakeOutcome) -> None:
    found = metrics_of(make_outcome([100.0, 100.0], busy_ms=(500.0, 1_500.0)))
    assert found["busy_imbalance"] == pytest.approx(1.5)
    assert found["busy_cv"] == pytest.approx(0.5)
    assert found["busy_share"] == pytest.approx(0.25)
    # Computed: 100 − 40 + 10 and 140 − 40 + 10 tokens.
    assert found["token_imbalance"] == pytest.approx(110 / 90)
    assert found["gpu_s"] == pytest.approx(16)
    assert found["output_tokens_s_gpu"] == pytest.approx(22 / 16)
    assert found["preemptions"] == 1


def test_without_an_slo_there_is_no_goodput(make_outcome: MakeOutcome) -> None:
    found = metrics_of(make_outcome([100.0]))
    assert math.isnan(found["goodput_share"])
    assert math.isnan(found["goodput_requests_s"])


def test_where_every_request_failed(make_outcome: MakeOutcome) -> None:
    found = metrics_of(make_outcome([NAN, NAN], busy_ms=(0.0, 0.0)), Slo(ttft_ms=1))
    assert found["failed_share"] == 1
    assert found["goodput_share"] == 0
    assert math.isnan(found["ttft_p99_ms"])
    assert math.isnan(found["hit_share"])
    assert math.isnan(found["busy_imbalance"])


def test_a_growing_queue_is_saturation(make_outcome: MakeOutcome) -> None:
    found = metrics_of(make_outcome(np.linspace(10, 4_000, 200).tolist()))
    assert found["saturated"] == 1
    assert found["queue_growth"] == pytest.approx(1 - 1 / 1.2, rel=0.05)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ttft_p99_ms", 8.123, "8.12 ms"),
        ("ttft_p99_ms", 812.4, "812 ms"),
        ("ttft_p99_ms", 4_210.0, "4.21 s"),
        ("ttft_p99_ms", 1_234_567.0, "1,235 s"),
        ("output_tokens_s", 9_540.2, "9,540 tok/s"),
        ("requests_s", 3.4, "3.40 req/s"),
        ("hit_share", 0.934, "93.4 %"),
        ("busy_imbalance", 1.5, "1.50×"),
        ("preemptions", 1_200.0, "1,200"),
        ("ttft_p99_ms", NAN, "–"),
        ("ttft_p99_ms", None, "–"),
    ],
)
def test_values_as_people_read_them(key: str, value: float | None, text: str) -> None:
    assert shown(key, value) == text


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        ("ttft_p99_ms", (100.0, 97.0, 103.0), "± 3 %"),
        ("ttft_p99_ms", (100.0, 99.5, 100.5), "± 0.5 %"),
        ("ttft_p99_ms", (100.0, 25.0, 400.0), "×÷ 4.0"),
        ("ttft_p99_ms", (100.0, 1.0, 10_000.0), "×÷ 100"),
        ("ttft_p99_ms", (100.0, 1e-3, 1e9), "×÷ 1000+"),
        ("output_tokens_s", (10.0, 0.0, 40.0), "± 200 %"),
        ("hit_share", (0.5, 0.2, 0.8), "± 30.0"),
        ("preemptions", (0.0, 0.0, 0.0), ""),
    ],
)
def test_intervals_as_people_read_them(key: str, values: tuple[float, float, float], text: str) -> None:
    assert spread(key, *values) == text
