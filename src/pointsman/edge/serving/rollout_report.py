"""What `pointsman status` and the admin port say of a rollout and of shadows."""

from __future__ import annotations

import msgspec

from pointsman.core.trials.arms import Arm, By
from pointsman.core.trials.comparison import ALPHA, Sums, cached_change, changes, verdict
from pointsman.core.trials.sketch import Sketch, quantile_ratio
from pointsman.core.trials.tally import End, Series
from pointsman.core.trials.verdict import Quantity
from pointsman.edge.serving.rollout import LiveRollout
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.serving.shadows import Shadow

_Z = 1.96


class ArmRow(msgspec.Struct):
    """One line of the A/B table."""

    name: str
    """ttft_ms, itl_ms and tokens_per_s are typical values (geometric means), one a request; ttft_ms_p50 and so on
    quantiles; cached_share and failed_share parts of 1."""
    base: float | None
    trial: float | None
    change: float | None = None
    """Of ttft_ms, itl_ms, tokens_per_s: trial over base less 1, with prompts and times alike; of quantiles the same,
    plainly; of cached_share trial less base. None: nothing can be said yet."""
    low: float | None = None
    high: float | None = None
    """Limits. Those of quantiles are for one look (95 %) and take requests as independent; all others hold for all
    looks, however many, and allow for sessions."""
    judged: bool = False
    """Whether the verdict depends on it."""


class ShadowReport(msgspec.Struct):
    """A policy that decides without acting."""

    policy: str
    off: str | None
    """Why it decides no longer."""
    decisions: int
    failed: int
    agreement: float | None
    """Part of its decisions that are those made."""
    compared: int
    """Decisions in which either policy predicts times."""
    predicted_saving_ms: float | None
    """Mean over those: how much less its choices would cost."""
    decision_us: float | None
    """Mean time of a decision."""


class RolloutReport(msgspec.Struct):
    """A rollout since it was last changed."""

    policy: str
    base: str
    share: float
    by: By
    worse_by: float
    auto_rollback: bool
    state: str
    """running or rolled back."""
    why: str | None
    """It was rolled back."""
    started_s: float
    """Seconds since 1970."""
    ended_s: float | None
    verdict: str
    verdict_why: str
    requests: dict[Arm, dict[End, int]]
    errors: int
    """Decisions that the policy failed to make, so that the base policy made them."""
    without_session: int
    """Requests split one by one for want of a route key."""
    rows: list[ArmRow]


class RolloutDocument(msgspec.Struct):
    """Answer of `GET /v1/rollout`."""

    policy: str
    rollout: RolloutReport | None
    shadows: list[ShadowReport]
    sums: Sums | None = None
    """Only where asked for; those of several front ends can be added."""


def report(order: RolloutOrder, base: str, sums: Sums, alpha: float = ALPHA) -> RolloutReport:
    """The report on a rollout by what came of its requests."""
    found = verdict(sums, order.worse_by, alpha)
    return RolloutReport(
        policy=order.policy,
        base=base,
        share=order.share,
        by=order.by,
        worse_by=order.worse_by,
        auto_rollback=order.auto_rollback,
        state="running" if order.ended is None else "rolled back",
        why=order.ended,
        started_s=0.0,
        ended_s=order.ended_s,
        verdict=str(found.judgement),
        verdict_why=found.why,
        requests={arm: dict(sums.of(arm).ends) for arm in Arm},
        errors=0,
        without_session=0,
        rows=_rows(sums, alpha),
    )


def live_report(rollout: LiveRollout) -> RolloutReport:
    """The report on a rollout of this front end."""
    made = report(rollout.order, rollout.base.name, rollout.comparison.sums, rollout.alpha)
    made.started_s, made.errors, made.without_session = rollout.started_s, rollout.errors, rollout.without_session
    return made


def shadow_report(shadow: Shadow) -> ShadowReport:
    """The report on one shadow policy."""
    tally = shadow.tally
    tries = tally.decisions + tally.failed
    return ShadowReport(
        policy=shadow.policy.name,
        off=shadow.off,
        decisions=tally.decisions,
        failed=tally.failed,
        agreement=tally.agreed / tally.decisions if tally.decisions else None,
        compared=tally.compared,
        predicted_saving_ms=tally.saved_ms / tally.compared if tally.compared else None,
        decision_us=1000 * tally.spent_ms / tries if tries else None,
    )


def _rows(sums: Sums, alpha: float) -> list[ArmRow]:
    base, trial = sums.base, sums.trial
    found = {change.quantity: change for change in changes(sums, alpha)}
    rows = []
    for name, quantity, one, two in (
        ("ttft_ms", Quantity.TTFT, base.ttft, trial.ttft),
        ("itl_ms", Quantity.ITL, base.itl, trial.itl),
        ("tokens_per_s", Quantity.SPEED, base.pace, trial.pace),
    ):
        row = ArmRow(name, _value(one, quantity), _value(two, quantity), judged=True)
        change = found.get(quantity)
        if change is not None:
            ratio, low, high = change.ratio, change.low, change.high
            if quantity is Quantity.SPEED:  # measured as time a token
                ratio, low, high = 1 / ratio, 1 / high, 1 / low
            row.change, row.low, row.high = ratio - 1, low - 1, high - 1
        rows.append(row)
    rows[1:1] = [
        _quantile("ttft_ms_p50", base.ttft, trial.ttft, 0.5),
        _quantile("ttft_ms_p99", base.ttft, trial.ttft, 0.99),
    ]
    rows[4:4] = [_quantile("itl_ms_p99", base.itl, trial.itl, 0.99)]
    points = cached_change(sums, alpha)
    cached = ArmRow("cached_share", base.cached.ratio(), trial.cached.ratio())
    if points is not None:
        cached.change, cached.low, cached.high = points.difference, points.low, points.high
    failed = ArmRow("failed_share", _failed(base.ends), _failed(trial.ends), judged=True)
    return [*rows, cached, failed]


def _value(series: Series, quantity: Quantity) -> float | None:
    typical = series.typical
    return 1000 / typical if typical is not None and quantity is Quantity.SPEED else typical


def _quantile(name: str, base: Series, trial: Series, part: float) -> ArmRow:
    ratio, low, high = quantile_ratio(base.sketch, trial.sketch, part, _Z)
    return ArmRow(
        name, _at(base.sketch, part), _at(trial.sketch, part), _less_one(ratio), _less_one(low), _less_one(high)
    )


def _at(sketch: Sketch, part: float) -> float | None:
    return sketch.quantiles(part)[0]


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _failed(ends: dict[End, int]) -> float | None:
    total = sum(ends.values())
    return ends.get(End.FAILED, 0) / total if total else None
