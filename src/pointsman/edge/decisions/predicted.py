"""What was predicted of a request at the worker that got it, by the step times known when it was decided."""

from __future__ import annotations

import math

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.step import StepCoefficients

_TTFT_TERM, _COMPLETION_TERM = "ttft_ms", "completion_ms"


def predicted_times(request: Request, decision: Decision, times: TimeRows) -> tuple[float | None, float | None]:
    """Time from the decision to the first token, and mean time between tokens, in ms; None where they are not known.

    A policy that predicts times itself (its terms `ttft_ms` and `completion_ms`, of the answer expected) is taken at
    its word; for the others they are medians of the time model, with the load that the view showed.
    """
    row = decision.chosen_row
    if row is None or not times.known[row]:
        return None, None
    terms = decision.terms
    if _TTFT_TERM in terms and _COMPLETION_TERM in terms and decision.unit == "ms":
        steps = decision.view.outlook.output_tokens - 1
        first = float(terms[_TTFT_TERM][row])
        between = (float(terms[_COMPLETION_TERM][row]) - first) / steps if steps > 0 else None
        return (first if math.isfinite(first) else None), between
    return _by_the_time_model(request, decision, row, times)


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
