"""What was predicted of a request at the worker that got it, by the step times known when it was decided."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pointsman.core.model.decision import Decision, PlanRows, Values
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.decisions.plans import moves_kv

_TTFT_TERM, _TRANSFER_TERM, _COMPLETION_TERM = "ttft_ms", "transfer_ms", "completion_ms"


def predicted_times(
    request: Request, decision: Decision, times: TimeRows, links: LinkTimes = NO_LINKS
) -> tuple[float | None, float | None]:
    """Time from the decision to the first token, and mean time between tokens, in ms; None where they are not known.

    A policy that predicts times itself (its terms `ttft_ms` and `completion_ms`, of the answer expected) is taken at
    its word; for the others they are medians of the time model, with the load that the view showed.
    """
    row = decision.chosen_row
    if row is None or not times.known[row]:
        return None, None
    plans = decision.plans
    if moves_kv(decision.plan) and plans is not None and plans.chosen >= 0:
        if _predicts(decision, plans.terms) and plans.comparable:
            return _by_its_terms(decision, plans.terms, plans.chosen)
        return _apart_by_the_time_model(request, decision, plans, times, links)
    if _predicts(decision, decision.terms):
        return _by_its_terms(decision, decision.terms, row)
    return _by_the_time_model(request, decision, row, times)


def predicted_alone_ms(request: Request, decision: Decision, times: TimeRows) -> float | None:
    """Time to the first token at the best worker that would have got it had no KV been moved; None: not known."""
    eligible = decision.view.eligible_rows()
    if not len(eligible):
        return None
    row = int(eligible[np.argmin(np.asarray(decision.scores, dtype=np.float64)[eligible])])
    if not times.known[row]:
        return None
    if _predicts(decision, decision.terms):
        return _by_its_terms(decision, decision.terms, row)[0]
    return _by_the_time_model(request, decision, row, times)[0]


def _predicts(decision: Decision, terms: Mapping[str, Values]) -> bool:
    return _TTFT_TERM in terms and _COMPLETION_TERM in terms and decision.unit == "ms"


def _by_its_terms(decision: Decision, terms: Mapping[str, Values], number: int) -> tuple[float | None, float | None]:
    steps = decision.view.outlook.output_tokens - 1
    first = float(terms[_TTFT_TERM][number])
    if _TRANSFER_TERM in terms:
        first += float(terms[_TRANSFER_TERM][number])
    between = (float(terms[_COMPLETION_TERM][number]) - first) / steps if steps > 0 else None
    return (first if math.isfinite(first) else None), between


def _apart_by_the_time_model(
    request: Request, decision: Decision, plans: PlanRows, times: TimeRows, links: LinkTimes
) -> tuple[float | None, float | None]:
    """A prompt computed elsewhere and moved, and a step with it where it is answered."""
    number = plans.chosen
    prefill, answers = int(plans.prefill[number]), int(plans.decode[number])
    first, between = _by_the_time_model(request, decision, answers, times)
    if prefill < 0 or not times.known[prefill]:
        return (None if prefill < 0 else first), between
    first, _ = _by_the_time_model(request, decision, prefill, times)
    table = decision.view.table
    size_bytes = float(plans.moved_tokens[number]) * float(table[Column.KV_TOKEN_BYTES, prefill])
    link = links.of(int(table[Column.NODE, prefill]), int(table[Column.NODE, answers]))
    under_way = max(int(table[Column.TRANSFERS_OUT, prefill]), int(table[Column.TRANSFERS_IN, answers]))
    return (None if first is None else first + link.ms(size_bytes, under_way) + between), between


def _by_the_time_model(request: Request, decision: Decision, row: int, times: TimeRows) -> tuple[float | None, float]:
    column = decision.view.table[:, row].tolist()
    step = StepCoefficients(
        float(times.a[row]), float(times.b[row]), 1000 * float(times.c[row]), float(times.d[row]), float(times.q[row])
    )
    load = _load(column)
    output = decision.view.outlook.output_tokens
    cached = min(column[Column.CACHED_TOKENS], request.prompt_tokens)
    first = ttft_ms(step, load, request.prompt_tokens - cached, cached_tokens=cached) * float(times.ttft_p50[row])
    first += float(times.overhead_ms[row])
    # Those that come and go meanwhile are taken to be like those that are there.
    sequences = load.sequences + load.waiting + request.sequences
    context = load.context_tokens + load.waiting_prefill_tokens + request.prompt_tokens + output / 2
    between = step.step_ms(sequences, context, 0.0) * float(times.step_p50[row])
    return (first if math.isfinite(first) else None), between


def _load(column: list[int]) -> Load:
    waiting = column[Column.WAITING_FIRST]
    waiting_tokens = column[Column.PREFILL_TOKENS]
    held = max(column[Column.KV_TOKENS], column[Column.KV_USED_TOKENS])
    return Load(
        sequences=max(0, column[Column.RUNNING] + column[Column.FOREIGN] - waiting),
        context_tokens=max(0, held - waiting_tokens),
        waiting_prefill_tokens=waiting_tokens,
        waiting=waiting,
    )
