"""Why a prompt was computed apart from its answer, or fetched, or why it was not: one sentence, true of the record."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.edge.decisions.legs_of_row import best_alone, best_plan, chosen_plan, kind_of, path
from pointsman.edge.decisions.plans import ALONE, APART, PULL
from pointsman.edge.decisions.words import amount, listed, ms, plain
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedPlan

_SHOWN_SHARE = 0.1
"""Of the largest difference."""
_MOST_REASONS = 2
_NAMES = {
    "ttft_ms": "until the prompt is computed",
    "transfer_ms": "for moving KV",
    "decode_ms": "of decoding",
    "slowdown_ms": "of slowdown of the requests there",
    "eviction_ms": "worth of room in caches",
    "placement_ms": "for what its content draws there",
    "relief_ms": "of disturbing those who decode where the prompt is computed",
    "risk_ms": "at risk in the link's and the workers' times",
    "slo_ms": "at stake for promised times",
    "adapter_ms": "of loading LoRA adapters",
    "weight_ms": "by the workers' weights",
}


def what_it_does(row: DecisionRow) -> str:
    """`p/0 computes the prompt for d/0`; empty where no KV is moved."""
    kind, tokens = kind_of(row), 0
    plan = chosen_plan(row)
    if plan is not None:
        tokens = plan.moved_tokens
    if kind == APART:
        return f"{row.prefill_worker} computes the prompt for {row.worker}, which gets {_moved(tokens, plan)}"
    if kind == PULL:
        return f"{row.worker} fetches {_moved(tokens, plan)} from {row.pull_source} and computes the rest"
    return ""


def why_moved(row: DecisionRow) -> str:
    """Of the chosen plan beside the best of the other kinds; empty where none could move KV.

    Differences of terms are told for plans whose scores can be compared.
    """
    if not row.plans or row.worker is None:
        return ""
    kind, does = kind_of(row), what_it_does(row)
    chosen, alone = chosen_plan(row), best_alone(row)
    if kind != ALONE:
        if chosen is None or not row.plans_comparable or row.unit != "ms":
            return does
        if alone is None:
            return f"{does}; no worker could have done all of it"
        dearer = (alone.score or 0.0) - (chosen.score or 0.0)
        terms = _because(chosen.terms, alone.terms) if dearer > 0 else _because(alone.terms, chosen.terms)
        if dearer >= 0:
            return f"{does}: {alone.worker} alone would have cost {ms(dearer)} more ({terms})"
        return f"{does}, although {alone.worker} alone was {ms(-dearer)} cheaper ({terms}): the operator wants it so"
    if not row.plans_comparable or row.unit != "ms" or alone is None:
        return ""
    parts = [_not_chosen(alone.score or 0.0, alone.terms, plan) for plan in _bests(row)]
    return "; ".join(part for part in parts if part)


def what_came(row: DecisionRow) -> str:
    """What came of it, beside what was predicted; empty where nothing was to be moved."""
    legs = row.legs
    if legs is None:
        return ""
    giver = legs.prefill or legs.source
    if legs.fallback is not None:
        return f"nothing came from {giver}, so {row.worker} computed all of it: {legs.fallback}"
    told = []
    if legs.prefill_ms is not None:
        told.append(f"{legs.prefill} had computed the prompt after {ms(legs.prefill_ms)}")
    if legs.transfer_ms is not None:
        size = "" if legs.moved_bytes is None else f" ({legs.moved_bytes / 1e6:,.1f} MB)"
        over = "" if legs.transport is None else f" over {legs.transport}"
        told.append(f"its KV took {ms(legs.transfer_ms)}{size}{over}")
    if row.predicted_alone_ms is not None and row.ttft_ms is not None:
        saved = row.predicted_alone_ms - row.ttft_ms
        told.append(
            f"the first token came {ms(abs(saved))} {'sooner' if saved >= 0 else 'later'} than was predicted without it"
        )
    return listed(told)


def _bests(row: DecisionRow) -> list[LoggedPlan]:
    found = (best_plan(row, kind) for kind in (APART, PULL))
    return [one for one in found if one is not None]


def _not_chosen(alone_score: float, alone_terms: Mapping[str, float], plan: LoggedPlan) -> str:
    what = f"prefill and decode apart ({path(plan)})" if plan.prefill is not None else f"fetching KV ({path(plan)})"
    if plan.excluded is not None:
        return f"{what} was excluded: {plan.excluded}"
    dearer = (plan.score or 0.0) - alone_score
    if dearer < 0:
        return f"{what} was {ms(-dearer)} cheaper"
    return f"{what} would have cost {ms(dearer)} more ({_because(alone_terms, plan.terms)})"


def _because(cheaper: Mapping[str, float], dearer: Mapping[str, float]) -> str:
    """The largest differences that make one dearer, and the largest that speaks for it all the same."""
    mine, its = _apart(cheaper), _apart(dearer)
    differences = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in {**mine, **its}}
    largest = max((abs(value) for value in differences.values()), default=0.0)
    worth = {name: value for name, value in differences.items() if abs(value) > _SHOWN_SHARE * largest}
    more = sorted((name for name in worth if worth[name] > 0), key=lambda name: -worth[name])[:_MOST_REASONS]
    less = sorted((name for name in worth if worth[name] < 0), key=lambda name: worth[name])[:1]
    told = [f"{ms(worth[name])} more {_name(name)}" for name in more]
    told += [f"{ms(-worth[name])} less {_name(name)}" for name in less]
    return listed(told) or "by what is too small to be named"


def _apart(terms: Mapping[str, float]) -> dict[str, float]:
    """With the completion as what comes after the first token."""
    told = dict(terms)
    if "completion_ms" in told and "ttft_ms" in told:
        told["decode_ms"] = told.pop("completion_ms") - told["ttft_ms"] - told.get("transfer_ms", 0.0)
    return told


def _name(term: str) -> str:
    return _NAMES.get(term, "of " + term.removesuffix("_ms").replace("_", " "))


def _moved(tokens: int, plan: LoggedPlan | None) -> str:
    if not tokens:
        return "its KV"
    size = f" ({plain(plan.moved_bytes / 1e6)} MB)" if plan is not None and plan.moved_bytes else ""
    return f"KV of {amount(tokens, 'tokens')}{size}"
