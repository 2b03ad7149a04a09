"""Explained: one decision with the sentences of why, and of why it was slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from pointsman.core.model.view import Column
from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.legs_of_row import kind_of
from pointsman.edge.decisions.plans import ALONE
from pointsman.edge.decisions.slow import Cause, slow_first_token, slow_sentence, slow_tokens
from pointsman.edge.decisions.state import Recorded
from pointsman.edge.decisions.step_times import step_times, ttft_parts
from pointsman.edge.decisions.what_if import WhatIf
from pointsman.edge.decisions.why import Parts, why
from pointsman.edge.decisions.why_moved import what_came, why_moved
from pointsman.edge.telemetry.decision_row import DecisionRow

TTFT, ITL = "ttft", "itl"


class SlowCause(msgspec.Struct):
    """A part of the time that was taken."""

    kind: str
    ms: float
    text: str


class Slow(msgspec.Struct):
    """What a time was spent on."""

    of: str
    """ttft or itl."""
    sentence: str
    causes: list[SlowCause]
    """The largest first; they add up to the time."""


class Explained(msgspec.Struct, omit_defaults=True):
    """A decision for people and programs."""

    decision: DecisionRow
    """Without its packed state."""
    why: str
    moved: str | None = None
    """Why no KV was moved for it; None: no plan would have, or `why` tells of it."""
    came: str | None = None
    """What came of it where it was to be moved."""
    slow: Slow | None = None
    what_if: WhatIf | None = None
    source: str = ""
    """Admin URL or file that it comes from."""


def explained(
    row: DecisionRow,
    recorded: Recorded | None,
    around: Sequence[DecisionRow] = (),
    facts: Mapping[str, WorkerFacts] | None = None,
    source: str = "",
    of: str | None = None,
) -> Explained:
    """Explain one decision.

    Args:
        recorded: its packed state, unpacked; None: what depends on it is left out.
        around: other decisions of about that time, for the speed of workers and what was computed before.
        facts: of workers, as they are now.
        of: which time's causes are told: ttft or itl; None: that which was further beyond what was predicted.
    """
    told = Explained(
        msgspec.structs.replace(row, state=""),
        why(row, _parts(row, recorded)),
        why_moved(row) or None if kind_of(row) == ALONE else None,
        what_came(row) or None,
        source=source,
    )
    times = None if recorded is None else step_times(recorded)
    if of not in (TTFT, ITL):
        of = ITL if _slow_in_tokens(row) else TTFT
    causes = (slow_tokens if of == ITL else slow_first_token)(row, around, facts or {}, times)
    sentence = slow_sentence(row, causes, "first token" if of == TTFT else "tokens")
    if sentence:
        told.slow = Slow(of, sentence, [_cause(cause) for cause in causes])
    return told


def _slow_in_tokens(row: DecisionRow) -> bool:
    """Which of the two times it is told of: that which is further beyond what was predicted."""
    if row.itl_ms is None or not row.predicted_tpot_ms or row.output_tokens < 2:
        return False
    if row.ttft_ms is None or not row.predicted_ttft_ms:
        return True
    tokens = row.itl_ms * (row.output_tokens - 1) / max(1, row.sequences)
    return tokens > row.ttft_ms and row.itl_ms / row.predicted_tpot_ms > row.ttft_ms / row.predicted_ttft_ms


def _parts(row: DecisionRow, recorded: Recorded | None) -> Parts | None:
    """Only where the terms of the row are times and the state is the one they were made of."""
    if recorded is None or row.unit != "ms":
        return None
    terms = {one.worker: one.terms.get("ttft_ms") for one in row.candidates}
    if not recorded.times.known.any() or None in terms.values() or not set(terms) <= set(recorded.view.workers):
        return None
    ttft_ms = np.array([terms.get(worker) or 0.0 for worker in recorded.view.workers], dtype=np.float64)
    parts = ttft_parts(recorded, ttft_ms)
    eligible = recorded.view.column(Column.EXCLUSION) == 0
    return {worker: parts[worker] for worker, able in zip(recorded.view.workers, eligible, strict=True) if able}


def _cause(cause: Cause) -> SlowCause:
    return SlowCause(cause.kind, round(cause.ms, 3), cause.text)
