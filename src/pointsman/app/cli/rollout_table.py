"""The A/B table of a rollout, and lines about shadow policies, for people."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.core.trials.arms import Arm
from pointsman.core.trials.verdict import Judgement
from pointsman.edge.serving.rollout_report import ArmRow, RolloutReport, ShadowReport

_NAMES = {
    "ttft_ms": "TTFT, typical",
    "ttft_ms_p50": "TTFT, p50",
    "ttft_ms_p99": "TTFT, p99",
    "itl_ms": "ITL, typical",
    "itl_ms_p99": "ITL, p99",
    "tokens_per_s": "tokens/s of a request",
    "cached_share": "cached",
    "failed_share": "failed",
}
_STYLE = {Judgement.WORSE: "red", Judgement.BETTER: "green", Judgement.NO_WORSE: "green"}


def share_text(part: float) -> str:
    """For example `5%`."""
    return f"{100 * part:.10g}%"


def print_rollout(console: Console, report: RolloutReport, of: str = "") -> None:
    """Who decides what, the verdict, and the table."""
    base, trial = escape(report.base), escape(report.policy)
    if report.why is None:
        console.print(
            f"rollout: [bold]{trial}[/bold] decides {share_text(report.share)} of all {report.by}s, {base} the rest, "
            f"since {_clock(report.started_s)}{of}"
        )
    else:
        when = "" if report.ended_s is None else f" at {_clock(report.ended_s)}"
        console.print(
            f"rollout: {trial} ({share_text(report.share)} of all {report.by}s) was [red]rolled back[/red]{when}{of}: "
            f"{escape(report.why)}"
        )
    style = _STYLE.get(Judgement(report.verdict), "yellow")
    console.print(f"[{style}]{escape(report.verdict)}[/{style}]: {escape(report.verdict_why)}")
    console.print(_table(report))
    if report.errors:
        console.print(f"[red]{trial} failed to make {report.errors} decisions; {base} made them[/red]")
    if report.without_session:
        have = "request has" if report.without_session == 1 else "requests have"
        console.print(f"{report.without_session} {have} no route key; such requests are split one by one")


def print_shadows(console: Console, shadows: list[ShadowReport]) -> None:
    """A line a shadow policy."""
    for shadow in shadows:
        name = escape(shadow.policy)
        parts = [f"agrees in {_part(shadow.agreement)} of {shadow.decisions} decisions"]
        if shadow.predicted_saving_ms is not None:
            less = "less" if shadow.predicted_saving_ms >= 0 else "more"
            parts.append(f"its choices would cost {abs(shadow.predicted_saving_ms):.1f} ms {less} by prediction")
        if shadow.decision_us is not None:
            parts.append(f"{shadow.decision_us:.0f} µs a decision")
        if shadow.failed:
            parts.append(f"{shadow.failed} failed")
        console.print(f"shadow {name}: {', '.join(parts)}")
        if shadow.off is not None:
            console.print(f"[red]shadow {name} is switched off: {escape(shadow.off)}[/red]")


def _table(report: RolloutReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for name in (f"base ({escape(report.base)})", f"trial ({escape(report.policy)})", "difference", "limits"):
        table.add_column(name, justify="right", no_wrap=True)
    base, trial = (sum(report.requests.get(arm, {}).values()) for arm in (Arm.BASE, Arm.TRIAL))
    table.add_row("requests ended", str(base), str(trial), "", "")
    for row in report.rows:
        table.add_row(
            _NAMES.get(row.name, row.name),
            _value(row.name, row.base),
            _value(row.name, row.trial),
            _change(row, row.change),
            "–" if row.low is None or row.high is None else f"{_change(row, row.low)} to {_change(row, row.high)}",
        )
    return table


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    return f"{value:.1f}" if name == "tokens_per_s" else f"{value:.1f} ms"


def _change(row: ArmRow, change: float | None) -> str:
    if change is None:
        return "–"
    return f"{100 * change:+.1f} {'points' if row.name.endswith('_share') else '%'}"


def _part(part: float | None) -> str:
    return "–" if part is None else f"{100 * part:.0f} %"


def _clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
