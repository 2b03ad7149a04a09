"""Which of several is worth having: the simplest that no other surely and noticeably beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pointsman.app.experiments.comparison import BySeed, Comparison, compare

DECIDES = ("goodput_share", "ttft_p99_ms", "ttft_p50_ms", "e2e_p50_ms", "output_tokens_s")
"""Measures that decide between policies, the first that tells two apart before the others."""
DECIDES_SPLIT = ("goodput_share", "e2e_p50_ms", "ttft_p99_ms", "itl_p99_ms", "output_tokens_s")
"""Those that are told of prefill and decode apart against together."""
DECIDES_MOVING = ("goodput_share", "ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "itl_p99_ms", "output_tokens_s")
"""Those that are told of KV that moves by request."""
WORTH = {"goodput_share": 0.01}
"""Smaller differences, however certain, are no reason to run anything more complicated."""
_WORTH_ELSE = 0.10


def noticeable(comparison: Comparison) -> bool:
    """A difference that is certain and large enough to act upon."""
    return comparison.significant and large(comparison)


def large(comparison: Comparison) -> bool:
    """A difference that is large enough to act upon, if it is certain."""
    return abs(comparison.difference.value) >= WORTH.get(comparison.key, _WORTH_ELSE)


def beats(first: str, second: str, comparisons: Sequence[Comparison], keys: Sequence[str] = DECIDES) -> bool:
    """Whether `first` is noticeably better on the first measure that tells them apart."""
    between = {each.key: each.seen_from(first) for each in comparisons if {each.first, each.second} == {first, second}}
    for key in keys:
        if key in between and noticeable(between[key]):
            return between[key].first_is_better
    return False


def simplest(names: Sequence[str], comparisons: Sequence[Comparison], keys: Sequence[str] = DECIDES) -> str:
    """Of `names`, simplest first, the one to take."""
    chosen = names[0]
    for other in names[1:]:
        if beats(other, chosen, comparisons, keys):
            chosen = other
    return chosen


def compared(results: Mapping[str, BySeed], keys: Sequence[str] = DECIDES) -> list[Comparison]:
    """All pairs on the measures that decide, corrected together."""
    return compare(results, keys)


def mean_of(runs: BySeed, key: str) -> float:
    """Mean of a measure over the seeds."""
    values = [metrics[key] for metrics in runs.values()]
    return sum(values) / len(values) if values else float("nan")
