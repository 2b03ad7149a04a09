"""The simplest that nobody surely beats."""

from __future__ import annotations

import random

from pointsman.app.advice.choice import DECIDES, beats, compared, simplest
from pointsman.app.experiments.comparison import BySeed

NAMES = ("round_robin", "least_loaded", "prefix", "kv")


def _runs(seeds: int = 5, spread: float = 0.01, **factors: float) -> dict[str, float] | dict[int, dict[str, float]]:
    """Measures around 1, those named multiplied."""
    rng = random.Random(str(factors))
    return {
        seed: {
            key: 0.9 if key == "goodput_share" else factors.get(key, 1.0) * rng.lognormvariate(0, spread)
            for key in DECIDES
        }
        | ({"goodput_share": factors["goodput_share"]} if "goodput_share" in factors else {})
        for seed in range(seeds)
    }


def _all(**named: BySeed) -> dict[str, BySeed]:
    return {name: named.get(name, _runs()) for name in NAMES}  # type: ignore[misc]


def test_alike_the_simplest_is_taken() -> None:
    assert simplest(NAMES, compared(_all())) == "round_robin"


def test_a_sure_and_large_difference_is_a_reason() -> None:
    runs = _all(prefix=_runs(ttft_p99_ms=0.5), kv=_runs(ttft_p99_ms=0.49))
    assert simplest(NAMES, compared(runs)) == "prefix"


def test_a_sure_but_small_one_is_not() -> None:
    runs = _all(kv=_runs(spread=1e-4, ttft_p99_ms=0.93))
    assert simplest(NAMES, compared(runs)) == "round_robin"


def test_a_large_but_unsure_one_is_not() -> None:
    runs = _all(kv=_runs(spread=1.0, ttft_p99_ms=0.7))
    assert simplest(NAMES, compared(runs)) == "round_robin"


def test_goodput_decides_before_latencies() -> None:
    runs = _all(kv=_runs(goodput_share=0.95, ttft_p50_ms=2.0))
    found = compared(runs)
    assert beats("kv", "round_robin", found)
    assert not beats("round_robin", "kv", found)


def test_one_seed_is_no_reason() -> None:
    runs = {name: _runs(seeds=1, ttft_p99_ms=0.1 if name == "kv" else 1.0) for name in NAMES}
    assert simplest(NAMES, compared(runs)) == "round_robin"  # type: ignore[arg-type]
