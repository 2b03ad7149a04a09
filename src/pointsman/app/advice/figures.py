"""Numbers as people read them."""

from __future__ import annotations

from pointsman.app.advice.choice import mean_of
from pointsman.app.advice.fleets import counted
from pointsman.app.advice.limits import Limit
from pointsman.app.experiments.comparison import BySeed, Comparison
from pointsman.app.experiments.measures import MEASURES, Kind, shown


def percent(share: float) -> str:
    """`37.4 %`; whole ones without a fraction."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value - round(value)) < 0.05 else f"{value:.1f} %"


def tokens(count: float) -> str:
    """`16.1 M tokens`."""
    if count >= 1e6:
        return f"{count / 1e6:,.3g} M tokens"
    return f"{count / 1e3:,.0f} k tokens" if count >= 1e4 else f"{count:,.0f} tokens"


def memory(size_bytes: float) -> str:
    """`5.27 TB`, `812 GB`, `3.4 GB`."""
    if size_bytes >= 1e12:
        return f"{size_bytes / 1e12:,.3g} TB"
    return f"{size_bytes / 1e9:,.0f} GB" if size_bytes >= 1e10 else f"{size_bytes / 1e9:.1f} GB"


def measured(runs: BySeed, key: str) -> str:
    """The mean over the seeds."""
    return shown(key, mean_of(runs, key))


def load(limit: Limit, *, with_spread: bool = True) -> str:
    """`×1.85`, `×1.85 (×1.71 to ×1.85 by seed)` or, beyond what was tried, `more than ×8 (×7.41 to more by seed)`."""
    if limit.value is None:
        return f"less than ×{limit.easiest:g}"
    known = limit.known if with_spread else None
    spread = ""
    if known and known[0] != known[1]:
        most = f"{'more than ' if known[1] == limit.hardest else ''}×{known[1]:g}"
        spread = f" (×{known[0]:g} to {'more' if limit.at_end else most} by seed)"
    return f"{'more than ' if limit.at_end else ''}×{limit.value:g}{spread}"


def workers(limit: Limit) -> str:
    """`5 workers`, or `5 workers (5 to 6 by seed)`."""
    value = limit.value
    if value is None:
        return f"more than {counted(round(limit.easiest))}"
    known = limit.known
    spread = f" ({known[0]:g} to {known[1]:g} by seed)" if known and known[0] != known[1] else ""
    return counted(round(value)) + spread


def amount(comparison: Comparison) -> str:
    """`P99 TTFT 41 % ± 3 lower`, `goodput 4.1 points ± 0.3 higher`, seen from the first policy."""
    measure, apart = MEASURES[comparison.key], comparison.difference
    unit = "points" if measure.kind is Kind.SHARE else "%"
    size = 100 * abs(apart.value)
    half = None if apart.low is None or apart.high is None else 50 * (apart.high - apart.low)
    digits = 0 if size >= 10 and (half is None or half >= 0.95) else 1
    sure = "" if half is None else f" ± {half:,.{digits}f}"
    return f"{measure.title} {size:,.{digits}f} {unit}{sure} {'lower' if apart.value < 0 else 'higher'}"
