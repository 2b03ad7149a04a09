"""The measures of a run: names, units, and which way is better."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Kind(enum.Enum):
    """How values of a measure are compared."""

    POSITIVE = "positive"
    """By their ratio."""
    SHARE = "share"
    """0 to 1, by their difference in percentage points."""
    COUNT = "count"
    """May be 0: by their difference."""


class Unit(enum.StrEnum):
    """How people see a value."""

    MS = "ms"
    TOKENS_S = "tok/s"
    REQUESTS_S = "req/s"
    SHARE = "share"
    TIMES = "times"
    SECONDS = "s"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    key: str
    title: str
    unit: Unit
    less_is_better: bool
    kind: Kind = Kind.POSITIVE
    meaning: str = ""


def _latencies(name: str, title: str, meaning: str) -> list[Measure]:
    return [
        Measure(f"{name}_{which}_ms", f"{shown} {title}", Unit.MS, True, meaning=meaning)
        for which, shown in (("mean", "mean"), ("p50", "P50"), ("p90", "P90"), ("p99", "P99"))
    ]


_ALL = (
    *_latencies("ttft", "TTFT", "arrival to first token"),
    *_latencies("itl", "ITL", "between two tokens of an answer, over all tokens"),
    *_latencies("tpot", "TPOT", "mean time between the tokens of an answer, over all answers of two tokens or more"),
    *_latencies("e2e", "E2E", "arrival to last token"),
    Measure(
        "output_tokens_s", "output", Unit.TOKENS_S, False, meaning="tokens answered, from first arrival to the end"
    ),
    Measure("total_tokens_s", "total", Unit.TOKENS_S, False, meaning="prompt and output tokens"),
    Measure("requests_s", "requests", Unit.REQUESTS_S, False, meaning="finished requests"),
    Measure("goodput_share", "goodput", Unit.SHARE, False, Kind.SHARE, "requests within the SLO, of all that came"),
    Measure("goodput_requests_s", "goodput", Unit.REQUESTS_S, False, Kind.COUNT, "requests within the SLO a second"),
    Measure("failed_share", "failed requests", Unit.SHARE, True, Kind.SHARE, "rejected, failed or unfinished requests"),
    Measure("hit_share", "hit rate", Unit.SHARE, False, Kind.SHARE, "prompt tokens that were found cached"),
    Measure(
        "apart_share", "prefill apart", Unit.SHARE, True, Kind.SHARE, "requests whose prompt another worker computed"
    ),
    Measure(
        "fetched_share", "KV fetched", Unit.SHARE, True, Kind.SHARE, "requests that fetched a part of their prompt's KV"
    ),
    Measure("busy_imbalance", "load imbalance", Unit.TIMES, True, meaning="busiest worker's busy time over the mean"),
    Measure("token_imbalance", "token imbalance", Unit.TIMES, True, meaning="the same for computed tokens"),
    Measure("busy_cv", "CV of load", Unit.TIMES, True, Kind.COUNT, "standard deviation of busy time over its mean"),
    Measure("busy_share", "busy", Unit.SHARE, True, Kind.SHARE, "time in which a worker computes, mean of all"),
    Measure("gpu_s", "GPU time", Unit.SECONDS, True, meaning="GPUs that were up, times how long"),
    Measure("output_tokens_s_gpu", "output a GPU", Unit.TOKENS_S, False, meaning="output tokens a GPU-second"),
    Measure(
        "preemptions", "preemptions", Unit.COUNT, True, Kind.COUNT, "sequences that lost their KV cache and began again"
    ),
    Measure(
        "queue_growth",
        "queue growth",
        Unit.SHARE,
        True,
        Kind.COUNT,
        "waiting requests that came to the queue, of arrivals",
    ),
)
MEASURES: Mapping[str, Measure] = {measure.key: measure for measure in _ALL}
"""All of them by key, in the order in which they are shown."""


def measure(key: str) -> Measure:
    """The measure with that key."""
    return MEASURES[key]


def shown(key: str, value: float | None) -> str:
    """A value as people read it: `812 ms`, `4.21 s`, `93.4 %`, `9,540 tok/s`; a dash for none."""
    if value is None or value != value:
        return "–"
    unit = MEASURES[key].unit
    if unit is Unit.SHARE:
        return f"{100 * value:.1f} %"
    if unit is Unit.MS:
        return f"{_digits(value / 1_000)} s" if value >= 1_000 else f"{_digits(value)} ms"
    if unit is Unit.TIMES:
        return f"{value:.2f}×"
    if unit is Unit.COUNT:
        return f"{value:,.0f}"
    return f"{_digits(value)} {unit}"


_AS_FACTOR = 50.0
"""Percent, from which on intervals of positive measures are shown as a factor."""


def spread(key: str, value: float, low: float | None, high: float | None) -> str:
    """Half an interval: `± 3 %` of the value, or points of a share; empty where there is none.

    `×÷ 4.2` of a value that may as well be so many times as large or as small, where a percentage would reach below 0.
    """
    if low is None or high is None:
        return ""
    half = 50 * (high - low)
    if MEASURES[key].kind is Kind.SHARE:
        return f"± {half:.1f}"
    if not value:
        return ""
    if half / value > _AS_FACTOR and low > 0 and MEASURES[key].kind is Kind.POSITIVE:
        factor = high / value
        return f"×÷ {factor:.{1 if factor < 10 else 0}f}" if factor < 1_000 else "×÷ 1000+"
    return f"± {half / value:.{0 if half / value >= 1 else 1}f} %"


def _digits(value: float) -> str:
    """Three significant digits, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
