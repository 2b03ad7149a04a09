"""A decision's summary for the debug header `x-pointsman-explain`."""

from __future__ import annotations

import msgspec

from pointsman.core.model.decision import Candidate, Decision
from pointsman.core.model.plan import answering
from pointsman.edge.decisions.plans import givers, logged_plans
from pointsman.edge.telemetry.decision_row import LoggedPlan

MAX_CANDIDATES = 16
MAX_PLANS = 3


class ExplainedCandidate(msgspec.Struct, omit_defaults=True):
    """One worker as the policy judged it."""

    worker: str
    score: float | None = None
    excluded: str | None = None
    cached_tokens: int = 0
    load: int = 0
    terms: dict[str, float] = {}


class Explanation(msgspec.Struct, omit_defaults=True):
    """The summary; `candidates` are best first and cut after a few, `workers` says how many there were."""

    policy: str
    worker: str | None
    unit: str
    workers: int
    candidates: list[ExplainedCandidate]
    runner_up: str | None = None
    margin: float | None = None
    note: str | None = None
    prefill_worker: str | None = None
    """That computes the prompt for `worker`."""
    pull_source: str | None = None
    """That `worker` fetches the beginning of the prompt from."""
    runner_up_prefill: str | None = None
    runner_up_source: str | None = None
    plans: list[LoggedPlan] = []
    """That move KV: the chosen one and the best of each kind."""


def explanation(decision: Decision) -> Explanation:
    """What decided, and between whom."""
    candidates = decision.candidates()
    runner_up = decision.runner_up_plan()
    prefill, source = givers(decision.plan)
    runner_up_prefill, runner_up_source = (None, None) if runner_up is None else givers(runner_up[0])
    return Explanation(
        policy=decision.policy,
        worker=decision.worker,
        unit=decision.unit,
        workers=len(candidates),
        candidates=[_explained(candidate) for candidate in candidates[:MAX_CANDIDATES]],
        runner_up=answering(runner_up[0]) if runner_up else None,
        margin=runner_up[1] if runner_up else None,
        note=decision.note,
        prefill_worker=prefill,
        pull_source=source,
        runner_up_prefill=runner_up_prefill,
        runner_up_source=runner_up_source,
        plans=logged_plans(decision, MAX_PLANS),
    )


def explanation_header(decision: Decision) -> bytes:
    """The summary as one line of ASCII JSON."""
    text = msgspec.json.encode(explanation(decision)).decode()
    return text.encode("ascii", "backslashreplace")


def _explained(candidate: Candidate) -> ExplainedCandidate:
    return ExplainedCandidate(
        worker=candidate.worker,
        score=candidate.score,
        excluded=candidate.excluded,
        cached_tokens=candidate.cached_tokens,
        load=candidate.load,
        terms=dict(candidate.terms),
    )
