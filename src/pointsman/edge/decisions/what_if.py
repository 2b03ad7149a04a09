"""What another policy would have decided, on the recorded state and with the recorded chance.

Both picks are judged by the terms of one policy in milliseconds, the *judge*: so they can be compared whoever decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Disaggregate, answering
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.contract import failure
from pointsman.core.policies.policy import Policy
from pointsman.edge.decisions.plans import pull_of
from pointsman.edge.decisions.predicted import predicted_times
from pointsman.edge.decisions.state import Recorded
from pointsman.edge.decisions.step_times import predicted_at
from pointsman.edge.decisions.words import count, ms


class Pick(msgspec.Struct, omit_defaults=True):
    """One worker as the judge sees it, in ms."""

    worker: str
    prefill: str | None = None
    """That computes the prompt for it."""
    source: str | None = None
    """That it fetches the beginning of the prompt from."""
    cached: int = 0
    load: int = 0
    score: float | None = None
    """None where the judge does not predict milliseconds."""
    terms: dict[str, float] = {}
    predicted_ttft_ms: float | None = None
    predicted_tpot_ms: float | None = None


class _Who(NamedTuple):
    """Who has part in a request."""

    worker: str | None
    prefill: str | None
    source: str | None


class WhatIf(msgspec.Struct, omit_defaults=True):
    """One decision made again by another policy."""

    id: str
    recorded_policy: str
    policy: str
    """That was asked for."""
    changed: bool
    sentence: str
    recorded: Pick | None = None
    """None: nobody was chosen."""
    instead: Pick | None = None
    dearer_ms: float | None = None
    """Score of the other pick less that of the recorded one, by the judge."""
    differences: dict[str, float] = {}
    """The same of each term."""
    judge: str = ""
    note: str | None = None
    """Of the policy that was asked for."""
    ignored: list[str] = []
    """What was recorded and this version does not know: the answer may differ for it."""


class WhatIfSummary(msgspec.Struct, omit_defaults=True):
    """Of many decisions."""

    policy: str
    decisions: int
    without_state: int
    """That could not be made again."""
    changed: int
    sentence: str
    dearer_ms: float | None = None
    """Sum over those that change, by the judge."""
    dearer_ttft_ms: float | None = None
    """The same of predicted times to the first token."""
    requests_before: dict[str, int] = {}
    requests_instead: dict[str, int] = {}


def what_if(recorded: Recorded, policy: Policy, judge: Policy | None = None) -> WhatIf:
    """What the policy would have chosen. Raises PolicyError if it fails on the recorded state."""
    decision = _decided(recorded, policy)
    judged = None if judge is None else _decided(recorded, judge)
    then = _Who(recorded.worker, recorded.prefill_worker, recorded.pull_source)
    now = _who(decision)
    before, after = _pick(recorded, then, judged), _pick(recorded, now, judged)
    answer = WhatIf(
        id=recorded.request.id,
        recorded_policy=recorded.policy,
        policy=policy.name,
        changed=now != then,
        sentence="",
        recorded=before,
        instead=after,
        judge="" if judge is None else judge.name,
        note=decision.note,
        ignored=list(recorded.ignored),
    )
    if before is not None and after is not None and before.score is not None and after.score is not None:
        answer.dearer_ms = round(after.score - before.score, 6)
        names = dict.fromkeys((*before.terms, *after.terms))
        answer.differences = {
            name: round(after.terms.get(name, 0.0) - before.terms.get(name, 0.0), 6) for name in names
        }
    answer.sentence = _sentence(answer)
    return answer


def summary(policy: str, answers: Iterable[WhatIf], without_state: int = 0) -> WhatIfSummary:
    """Of decisions that were each made again as they were recorded: none feels what another one would have changed."""
    every = list(answers)
    changed = [answer for answer in every if answer.changed]
    dearer = [answer.dearer_ms for answer in changed if answer.dearer_ms is not None]
    later = [
        answer.instead.predicted_ttft_ms - answer.recorded.predicted_ttft_ms
        for answer in changed
        if answer.instead is not None
        and answer.recorded is not None
        and answer.instead.predicted_ttft_ms is not None
        and answer.recorded.predicted_ttft_ms is not None
    ]
    total = round(math.fsum(dearer), 3) if dearer else None
    picks = (pick for one in every for pick in (one.recorded, one.instead) if pick is not None)
    what = "another plan" if any(pick.prefill or pick.source for pick in picks) else "another worker"
    sentence = f"{policy} would have chosen {what} in {len(changed):,} of {count(len(every), 'decisions')}"
    if total is not None:
        sentence += f", {ms(abs(total))} {'dearer' if total >= 0 else 'cheaper'} in all"
    if later:
        mean = math.fsum(later) / len(later)
        sentence += f", with first tokens {ms(abs(mean))} {'later' if mean >= 0 else 'sooner'} in those on average"
    return WhatIfSummary(
        policy=policy,
        decisions=len(every),
        without_state=without_state,
        changed=len(changed),
        sentence=sentence,
        dearer_ms=total,
        dearer_ttft_ms=round(math.fsum(later), 3) if later else None,
        requests_before=dict(Counter(one.recorded.worker for one in every if one.recorded is not None)),
        requests_instead=dict(Counter(one.instead.worker for one in every if one.instead is not None)),
    )


def _decided(recorded: Recorded, policy: Policy) -> Decision:
    """Raises PolicyError that names the request, whatever the policy raised."""
    try:
        return recorded.decide(policy)
    except Exception as error:
        raise PolicyError(failure(policy, recorded.request.id, error)) from error


def _who(decision: Decision) -> _Who:
    pull = pull_of(decision.plan)
    return _Who(decision.worker, decision.prefill_worker, None if pull is None else pull.source)


def _pick(recorded: Recorded, who: _Who, judged: Decision | None) -> Pick | None:
    view, worker = recorded.view, who.worker
    if worker is None or worker not in view.workers:
        return None
    row = view.workers.index(worker)
    cached, load = int(view.table[Column.CACHED_TOKENS, row]), int(view.load[row])
    pick = Pick(str(worker), who.prefill, who.source, cached, load)
    if judged is None:
        return pick
    if who.prefill is not None or who.source is not None:
        _judge_moved(pick, recorded, who, judged)
        return pick
    pick.predicted_ttft_ms, pick.predicted_tpot_ms = predicted_at(recorded, judged, WorkerId(worker))
    if judged.unit == "ms":
        pick.score = float(judged.scores[row])
        pick.terms = {name: float(values[row]) for name, values in judged.terms.items()}
    return pick


def _judge_moved(pick: Pick, recorded: Recorded, who: _Who, judged: Decision) -> None:
    """Of a plan that moves KV: only where the judge thought of it, and among its best."""
    plans = judged.plans
    if plans is None or not plans.comparable:
        return
    for number in range(len(plans.decode)):
        plan = judged.plan_of(number)
        pull = pull_of(plan)
        prefill = plan.prefill if isinstance(plan, Disaggregate) else None
        if (answering(plan), prefill, None if pull is None else pull.source) != who:
            continue
        moved = replace(judged, plan=plan, plans=replace(plans, chosen=number))
        pick.predicted_ttft_ms, pick.predicted_tpot_ms = predicted_times(
            recorded.request, moved, recorded.times, recorded.links
        )
        if judged.unit == "ms" and number not in plans.excluded:
            pick.score = float(plans.scores[number])
            pick.terms = {name: float(values[number]) for name, values in plans.terms.items()}


def _named(pick: Pick | None) -> str:
    """`d/0`, `p/0 → d/0`."""
    if pick is None:
        return "nobody"
    giver = pick.prefill or pick.source
    return pick.worker if giver is None else f"{giver} → {pick.worker}"


def _sentence(answer: WhatIf) -> str:
    then, instead = answer.recorded, answer.instead
    if not answer.changed:
        whom = _named(then)
        return f"{answer.policy} would have chosen {whom} too"
    if instead is None:
        return f"{answer.policy} would have chosen nobody instead of {_named(then)}"
    if then is None:
        return f"{answer.policy} would have chosen {_named(instead)}, where nobody was chosen"
    sentence = f"{answer.policy} would have chosen {_named(instead)} instead of {_named(then)}"
    if answer.dearer_ms is None:
        return sentence
    if answer.dearer_ms == 0:
        return f"{sentence}, which costs as much"
    sentence += f", {ms(abs(answer.dearer_ms))} {'dearer' if answer.dearer_ms > 0 else 'cheaper'}"
    largest = max(answer.differences.items(), key=lambda item: item[1] * math.copysign(1.0, answer.dearer_ms or 1.0))
    return f"{sentence}, mostly by {largest[0].removesuffix('_ms').replace('_', ' ')} ({largest[1]:+,.3g} ms)"
