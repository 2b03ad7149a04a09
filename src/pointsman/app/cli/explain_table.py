"""Decisions, what-ifs and skew as tables and sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pointsman.edge.decisions.explained import Explained
from pointsman.edge.decisions.legs_of_row import best_alone, best_plan, chosen_plan, kind_of, path, plan_kind
from pointsman.edge.decisions.plans import ALONE, APART, PULL
from pointsman.edge.decisions.row_search import measure
from pointsman.edge.decisions.skew import SkewReport
from pointsman.edge.decisions.what_if import Pick, WhatIf, WhatIfSummary
from pointsman.edge.decisions.words import amount, count, percent, plain
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedCandidate

_MOST_ROWS = 16
"""Candidates that are printed."""


def print_explained(console: Console, told: Explained) -> None:
    """One decision, all of it."""
    row = told.decision
    console.print(f"[bold]{escape(row.id)}[/bold]  {_when(row)}, {escape(_request(row))}", soft_wrap=True)
    console.print(escape(_who(row)), soft_wrap=True)
    console.print(f"[bold]why:[/bold] {escape(told.why)}.", soft_wrap=True)
    if row.candidates:
        console.print(_candidates(row))
        left = row.workers - min(_MOST_ROWS, len(row.candidates))
        if left > 0:
            console.print(f"and {count(left, 'workers')} more" + _excluded(row))
    if row.plans:
        if told.moved is not None:
            console.print(f"[bold]KV:[/bold] {escape(told.moved)}.", soft_wrap=True)
        console.print(_kinds(row))
    console.print(_outcome(row))
    if told.came is not None:
        console.print(f"[bold]what came of the KV:[/bold] {escape(told.came)}.", soft_wrap=True)
    if told.slow is not None:
        console.print(f"[bold]time:[/bold] {escape(told.slow.sentence)}.", soft_wrap=True)
    if told.what_if is not None:
        print_what_if(console, told.what_if)


_SORTED_BY = {"ttft": "first token after ms", "e2e": "last token after ms", "error": "TTFT off by ms"}
"""Columns of what no other one shows: `TTFT ms` is from the decision on, as predictions are."""


def print_list(console: Console, every: Sequence[Explained], worst: str | None = None) -> None:
    """Many decisions, a line each, then why each was made; with what `--worst` sorted them by."""
    table = _table()
    for name in ("decision", "at", "status", "policy", "worker"):
        table.add_column(name, no_wrap=True)
    by = _SORTED_BY.get(worst or "")
    if by is not None:
        table.add_column(by, justify="right", no_wrap=True)
    for name in ("prompt", "cached", "found", "TTFT ms", "predicted", "ITL ms", "predicted", "margin"):
        table.add_column(name, justify="right", no_wrap=True)
    for told in every:
        row = told.decision
        table.add_row(
            escape(row.id),
            _when(row),
            row.status,
            escape(row.policy) or "–",
            escape(_workers(row)),
            *([] if worst is None or by is None else [_number(measure(row, worst))]),
            f"{row.prompt_tokens:,}",
            f"{row.cached:,}",
            _number(row.cached_reported),
            _number(row.ttft_ms),
            _number(row.predicted_ttft_ms),
            _number(row.itl_ms),
            _number(row.predicted_tpot_ms),
            "–" if row.margin is None else amount(row.margin, row.unit),
        )
    console.print(table)
    for told in every:
        what_if = "" if told.what_if is None else f"; {told.what_if.sentence}"
        slow = "" if told.slow is None else f"; {told.slow.sentence}"
        console.print(f"[bold]{escape(told.decision.id)}[/bold]: {escape(told.why + slow + what_if)}.", soft_wrap=True)


def print_what_if(console: Console, answer: WhatIf) -> None:
    """Both picks, and what the other one would have cost."""
    console.print(f"[bold]what if:[/bold] {escape(answer.sentence)}.", soft_wrap=True)
    if answer.note:
        console.print(f"  {escape(answer.policy)}: {escape(answer.note)}", soft_wrap=True)
    if answer.ignored:
        console.print(f"  not known to this version, and left out: {escape(', '.join(answer.ignored))}", soft_wrap=True)
    if not answer.changed or (answer.recorded is None and answer.instead is None):
        return
    picks = [pick for pick in (answer.recorded, answer.instead) if pick is not None]
    names = list(dict.fromkeys(name for pick in picks for name in pick.terms))
    table = _table()
    for name in ("policy", "worker"):
        table.add_column(name, no_wrap=True)
    for name in ("cached", "load", "TTFT ms", "TPOT ms", *_score_head("ms" if names else ""), *map(_term, names)):
        table.add_column(name, justify="right", no_wrap=True)
    for policy, pick in ((answer.recorded_policy, answer.recorded), (answer.policy, answer.instead)):
        if pick is not None:
            table.add_row(*_pick(policy, pick, names))
    if answer.dearer_ms is not None:
        by_name = [f"{answer.differences.get(name, 0.0):+,.3g}" for name in names]
        table.add_row("difference", "", "", "", "", "", f"{answer.dearer_ms:+,.3g}", *by_name)
    console.print(table)
    if answer.judge:
        console.print(f"by the times that {escape(answer.judge)} predicts for both")


def print_summary(console: Console, told: WhatIfSummary) -> None:
    """Of many what-ifs."""
    console.print(f"[bold]what if:[/bold] {escape(told.sentence)}.", soft_wrap=True)
    if told.without_state:
        console.print(f"{count(told.without_state, 'decisions')} without a recorded state were left out")
    table = _table()
    table.add_column("worker", no_wrap=True)
    table.add_column("requests", justify="right")
    table.add_column(f"by {escape(told.policy)}", justify="right")
    for worker in sorted({*told.requests_before, *told.requests_instead}):
        before, instead = told.requests_before.get(worker, 0), told.requests_instead.get(worker, 0)
        table.add_row(escape(worker), f"{before:,}", f"{instead:,}")
    console.print(table)


def print_skew(console: Console, reports: Sequence[SkewReport]) -> None:
    """A model after the other."""
    for number, report in enumerate(reports):
        if number:
            console.print()
        console.print(f"[bold]{escape(report.sentence)}.[/bold]", soft_wrap=True)
        table = _table()
        table.add_column("worker", no_wrap=True)
        for name in ("requests", "share", "fair share", "busy s", "cached", "ITL ms"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in report.workers:
            table.add_row(
                escape(one.worker),
                f"{one.requests:,}",
                percent(one.share),
                percent(one.fair_share),
                f"{one.busy_ms / 1000:,.1f}",
                "–" if one.cached_share is None else percent(one.cached_share),
                _number(one.itl_p50_ms),
            )
        console.print(table)
        for cause in report.causes:
            console.print(f"to do ({escape(cause.kind)}): {escape(cause.advice)}", soft_wrap=True)


# ---- parts of one decision


def _when(row: DecisionRow) -> str:
    return datetime.fromtimestamp(row.at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _request(row: DecisionRow) -> str:
    output = f", {count(row.output_tokens, 'tokens')} of answer" if row.output_tokens else ""
    return f"{row.model}: {row.prompt_tokens:,} prompt tokens ({row.prompt_from}){output}, {row.status} ({row.http})"


def _workers(row: DecisionRow) -> str:
    """`d/0`, or who gave it KV, too."""
    giver = row.prefill_worker or row.pull_source
    return row.worker or "nobody" if giver is None else f"{giver} → {row.worker}"


def _who(row: DecisionRow) -> str:
    parts = [f"decided by {row.policy}" if row.policy else "not decided"]
    if row.arm:
        parts.append(f"of the {row.arm} arm of a rollout")
    if row.runner_up is not None and row.margin is not None:
        giver = row.runner_up_prefill or row.runner_up_source
        runner_up = row.runner_up if giver is None else f"{giver} → {row.runner_up}"
        behind = "behind" if row.margin >= 0 else "cheaper"
        parts.append(f"runner-up {runner_up}, {amount(abs(row.margin), row.unit)} {behind}")
    parts += [
        f"{policy} in the shadow would have chosen {worker or 'nobody'}" for policy, worker in row.shadows.items()
    ]
    if row.slo_missed:
        parts.append(f"missed its promised {' and '.join(row.slo_missed)}")
    return ", ".join(parts)


def _candidates(row: DecisionRow) -> Table:
    shown = row.candidates[:_MOST_ROWS]
    names = list(dict.fromkeys(name for one in shown for name in one.terms))
    table = _table()
    table.add_column("worker", no_wrap=True)
    for name in (*_score_head(row.unit), *map(_term, names), "cached", "load"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("excluded")
    for one in shown:
        mark = "→ " if one.worker == row.worker else "  "
        table.add_row(*_candidate(mark, one, names), style="bold" if one.worker == row.worker else None)
    return table


def _kinds(row: DecisionRow) -> Table:
    """The best plan of each kind, the chosen one marked."""
    alone, chosen = best_alone(row), chosen_plan(row)
    plans = [plan for kind in (APART, PULL) if (plan := best_plan(row, kind)) is not None]
    if chosen is not None and chosen not in plans:
        plans.insert(0, chosen)
    terms = [plan.terms for plan in plans] + ([] if alone is None else [alone.terms])
    names = list(dict.fromkeys(name for one in terms for name in one))
    table = _table()
    table.add_column("best plan", no_wrap=True)
    table.add_column("by", no_wrap=True)
    for name in (*_score_head(row.unit), *map(_term, names), "moved"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("excluded")
    if alone is not None:
        took = kind_of(row) == ALONE
        cells = [alone.worker, _number(alone.score), *(_number(alone.terms.get(name)) for name in names), "–", ""]
        table.add_row(("→ " if took else "  ") + ALONE, *map(escape, cells), style="bold" if took else None)
    for plan in plans:
        took = plan is chosen
        mark = "→ " if took else "  "
        values = (_number(plan.terms.get(name)) for name in names)
        cells = [path(plan), _number(plan.score), *values, f"{plan.moved_tokens:,}", plan.excluded or ""]
        table.add_row(mark + plan_kind(plan), *map(escape, cells), style="bold" if took else None)
    return table


def _candidate(mark: str, one: LoggedCandidate, names: list[str]) -> Iterator[str]:
    yield f"{mark}{escape(one.worker)}"
    yield _number(one.score)
    for name in names:
        yield _number(one.terms.get(name)) if one.excluded is None else "–"
    yield f"{one.cached:,}"
    yield str(one.load)
    yield escape(one.excluded or "")


def _excluded(row: DecisionRow) -> str:
    told = ", ".join(f"{number} {reason}" for reason, number in row.excluded.items())
    return f"; excluded of all: {escape(told)}" if told else ""


def _outcome(row: DecisionRow) -> Table:
    table = _table()
    table.add_column("")
    for name in ("predicted", "observed", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    lines = [
        ("time to first token, ms", row.predicted_ttft_ms, row.ttft_ms),
        ("time between tokens, ms", row.predicted_tpot_ms, row.itl_ms),
        ("cached tokens", row.cached if row.worker else None, row.cached_reported),
    ]
    plan, legs = chosen_plan(row), row.legs
    if plan is not None or legs is not None:
        terms = {} if plan is None else plan.terms
        prefill = None if plan is None or plan.prefill is None else terms.get("ttft_ms")
        moved, size = (None, None) if plan is None else (plan.moved_tokens, plan.moved_bytes or None)
        lines += [
            ("prefill elsewhere, ms", prefill, None if legs is None else legs.prefill_ms),
            ("transfer of KV, ms", terms.get("transfer_ms"), None if legs is None else legs.transfer_ms),
            ("moved tokens", moved, None if legs is None else legs.moved_tokens),
            ("moved bytes", size, None if legs is None else legs.moved_bytes),
        ]
    for name, predicted, observed in lines:
        if predicted is None and observed is None and name.startswith(("prefill", "moved")):
            continue
        error = "–" if predicted is None or observed is None else f"{observed - predicted:+,.4g}"
        table.add_row(name, _number(predicted), _number(observed), error)
    return table


def _pick(policy: str, pick: Pick, names: list[str]) -> Iterator[str]:
    giver = pick.prefill or pick.source
    yield escape(policy)
    yield escape(pick.worker if giver is None else f"{giver} → {pick.worker}")
    yield f"{pick.cached:,}"
    yield str(pick.load)
    yield _number(pick.predicted_ttft_ms)
    yield _number(pick.predicted_tpot_ms)
    if names:
        yield _number(pick.score)
    for name in names:
        yield _number(pick.terms.get(name))


def _score_head(unit: str) -> list[str]:
    return [f"score, {unit}" if unit not in ("", "none") else "score"] if unit else []


def _term(name: str) -> str:
    return escape(name.removesuffix("_ms").removesuffix("_tokens").replace("_", " "))


def _number(value: float | None) -> str:
    return "–" if value is None else plain(value)


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
