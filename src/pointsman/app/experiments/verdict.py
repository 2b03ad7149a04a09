"""The verdict in plain sentences: which policy is better at what, how sure that is, and what to beware of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pointsman.app.experiments.comparison import MATTERS, BySeed, Comparison
from pointsman.app.experiments.measures import MEASURES, Kind, Unit, shown

WITH_SLO = ("goodput_share", "ttft_p99_ms", "ttft_p50_ms", "tpot_mean_ms", "output_tokens_s")
WITHOUT_SLO = WITH_SLO[1:]
"""The measures that verdicts are about."""
WITH_FAILURES = ("failed_share", *WITHOUT_SLO)
"""Without an SLO, where requests failed: who refuses half of them is fast with the others."""
_FAILED_FROM = 0.001
_LARGE = 0.05
_ENOUGH_SEEDS = 5


def verdict_keys(results: Mapping[str, BySeed], *, with_slo: bool) -> tuple[str, ...]:
    """The measures that a verdict on these results is about."""
    if with_slo:
        return WITH_SLO  # failures miss it
    failed = any(metrics["failed_share"] > 0 for runs in results.values() for metrics in runs.values())
    return WITH_FAILURES if failed else WITHOUT_SLO


def leader(results: Mapping[str, BySeed], comparisons: Sequence[Comparison], keys: Sequence[str]) -> str:
    """The policy with the most significant wins less losses; among equals the one better on the first of `keys`.

    Still equal: the first.
    """
    wins = dict.fromkeys(results, 0)
    for each in comparisons:
        if each.significant:
            better, worse = (each.first, each.second) if each.first_is_better else (each.second, each.first)
            wins[better] += 1
            wins[worse] -= 1

    def rank(label: str) -> tuple[float, ...]:
        means = (_mean([metrics[key] for metrics in results[label].values()]) for key in keys)
        signs = (1 if MEASURES[key].less_is_better else -1 for key in keys)
        # No value is the worst: nothing was answered.
        return (
            -wins[label],
            *(sign * mean if mean == mean else math.inf for sign, mean in zip(signs, means, strict=True)),
        )

    return min(results, key=rank)


def sentences(results: Mapping[str, BySeed], comparisons: Sequence[Comparison], keys: Sequence[str]) -> list[str]:
    """One sentence for each policy against the leader, one for those that are like it, then what to beware of."""
    said: list[str] = []
    told = {label: runs for label, runs in results.items() if runs}
    if len(told) > 1:
        best = leader(told, comparisons, keys)
        alike: dict[str, list[str]] = {}
        for other in told:
            between = [each.seen_from(best) for each in comparisons if {each.first, each.second} == {best, other}]
            if other == best or not between:
                continue
            several = len(results[best].keys() & results[other].keys()) > 1
            if several and not any(each.significant for each in between):
                alike.setdefault(listed([_name(each) for each in between], "or"), []).append(other)
            else:
                said.append(_between(best, other, between, several=several))
        said.extend(
            f"No significant difference between {best} and {listed(others, 'or')} on {names}."
            for names, others in alike.items()
        )
    said.extend(_few_seeds(told, comparisons))
    said.extend(_warnings(told))
    return said


def _between(best: str, other: str, comparisons: Sequence[Comparison], *, several: bool) -> str:
    """Some of it is significant, or there is one seed."""
    if not several:
        return _by_one_seed(best, other, comparisons)
    better = [f"{_amount(each)} on {_name(each)}" for each in comparisons if each.significant and each.first_is_better]
    worse = [
        f"{_amount(each)} on {_name(each)}" for each in comparisons if each.significant and not each.first_is_better
    ]
    alike = [_name(each) for each in comparisons if not each.significant]
    parts = []
    if better:
        parts.append(f"{best} beats {other} by {listed(better)}")
    if worse:
        parts.append(f"{'it' if better else best} is worse{'' if better else f' than {other}'} by {listed(worse)}")
    if alike:
        parts.append(f"no significant difference on {listed(alike, 'or')}")
    return "; ".join(parts) + "."


def _by_one_seed(best: str, other: str, comparisons: Sequence[Comparison]) -> str:
    apart = [
        f"{_amount(each)} {'better' if each.first_is_better else 'worse'} on {_name(each)}"
        for each in comparisons
        if abs(each.difference.value) >= MATTERS[MEASURES[each.key].kind]
    ]
    found = listed(apart) or "alike"
    return f"{best} against {other}, one seed: {found}. Whether that is chance, several seeds tell (--seeds 5)."


def _amount(comparison: Comparison) -> str:
    """For example `41 % ± 3`, or `4.1 points ± 0.3` for shares."""
    apart = comparison.difference
    share = MEASURES[comparison.key].kind is Kind.SHARE
    half = None if apart.low is None or apart.high is None else 50 * (apart.high - apart.low)
    size = 100 * abs(apart.value)
    digits = 0 if size >= 10 and (half is None or half >= 0.95) else 1
    amount = f"{size:,.{digits}f} {'points' if share else '%'}"
    return amount if half is None else f"{amount} ± {half:,.{digits}f}"


def _name(comparison: Comparison) -> str:
    measure = MEASURES[comparison.key]
    return f"{measure.title} {measure.unit}" if measure.unit is Unit.TOKENS_S else measure.title


def _few_seeds(results: Mapping[str, BySeed], comparisons: Sequence[Comparison]) -> list[str]:
    seeds = max((len(runs) for runs in results.values()), default=0)
    large = [each for each in comparisons if abs(each.difference.value) >= _LARGE and not each.significant]
    if not large or not 1 < seeds < _ENOUGH_SEEDS:
        return []
    return [
        f"With {seeds} seeds not every large difference can be told from chance; {_ENOUGH_SEEDS} tell more (--seeds)."
    ]


def _warnings(results: Mapping[str, BySeed]) -> list[str]:
    said = []
    for label, runs in results.items():
        growth = [metrics["queue_growth"] for metrics in runs.values() if metrics["saturated"]]
        if len(growth) * 2 > len(runs):
            said.append(
                f"{label}: the queue still grew when the last requests came, by {100 * _mean(growth):.0f} % of "
                "arrivals: this fleet is too small for this traffic, and latencies grow with the length of the trace."
            )
        failed = _mean([metrics["failed_share"] for metrics in runs.values()])
        if failed >= _FAILED_FROM:
            said.append(
                f"{label}: {shown('failed_share', failed)} of the requests were rejected, failed or not finished; "
                "latencies are those of the others."
            )
    return said


def listed(names: Sequence[str], last: str = "and") -> str:
    """For example `a, b and c`."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
