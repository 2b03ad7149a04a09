"""In words: whether KV should move between workers where that is predicted to pay, request by request."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.app.advice import figures
from pointsman.app.advice.choice import mean_of, noticeable
from pointsman.app.advice.findings import APART, MOVING, TOGETHER, Findings
from pointsman.app.advice.fleet_words import Apart
from pointsman.app.advice.laboratory import BY_REQUEST
from pointsman.app.experiments.comparison import Comparison
from pointsman.app.experiments.verdict import listed

_HARDLY = 0.005
"""Share of requests below which moving KV plays no part."""


def by_request(findings: Findings) -> Apart | None:
    """Whether it does better than the same workers whose KV stays; None: not compared."""
    if not findings.moving.get(MOVING):
        return None
    noticed = _noticed(findings, MOVING, TOGETHER)
    if not noticed:
        return Apart.TIE
    return Apart.YES if noticed[0].first_is_better else Apart.NO


def moved_share(findings: Findings) -> float | None:
    """Of the requests, those whose KV moved there; None: not compared."""
    runs = findings.moving.get(MOVING)
    return mean_of(runs, "apart_share") + mean_of(runs, "fetched_share") if runs else None


def moving(findings: Findings) -> list[str]:
    """What the policy that decides by request makes of the same workers, and of the split."""
    answer, share = by_request(findings), moved_share(findings)
    if answer is None or share is None or findings.split is None:
        return []
    runs = findings.moving[MOVING]
    fleet = f"{findings.together.name} for both stages"
    if share < _HARDLY:
        said = [
            f"Decided by request (cost, kv_transfer: auto), KV hardly ever moves between {fleet}: "
            "what it takes to move it is more than what it takes to compute it there."
        ]
    else:
        what = (
            f"{figures.percent(mean_of(runs, 'apart_share'))} of the prompts are computed elsewhere and "
            f"{figures.percent(mean_of(runs, 'fetched_share'))} fetched in part"
        )
        noticed = _noticed(findings, MOVING, TOGETHER)
        better, worse = _amounts(noticed, first_is_better=True), _amounts(noticed, first_is_better=False)
        said = [f"Decided by request (cost, kv_transfer: auto), on {fleet} {what}: {_effect(better, worse)}."]
    said.extend(_of_the_split(findings))
    return said


def _of_the_split(findings: Findings) -> list[str]:
    """How the split does if short prompts may stay where they are answered."""
    assert findings.split is not None
    runs = findings.moving.get(APART)
    if not runs:
        return []
    noticed = _noticed(findings, APART, MOVING)
    better, worse = _amounts(noticed, first_is_better=True), _amounts(noticed, first_is_better=False)
    share = figures.percent(mean_of(runs, "apart_share"))
    if findings.split_policy == BY_REQUEST and by_request(findings) is Apart.TIE:
        # What the split does to the same policy was told, and workers for both stages do the same either way.
        return [f"On {findings.split.name} it decides by request, too: {share} of the prompts are computed apart."]
    return [
        f"On {findings.split.name} it has {share} of the prompts computed apart; against workers for both stages: "
        f"{_effect(better, worse)}."
    ]


def _effect(better: Sequence[str], worse: Sequence[str]) -> str:
    if not better and not worse:
        return "no noticeable difference"
    if better and worse:
        return f"{listed(better)}, but {listed(worse)}"
    return listed(better or worse)


def _amounts(noticed: Sequence[Comparison], *, first_is_better: bool) -> list[str]:
    return [figures.amount(each) for each in noticed if each.first_is_better is first_is_better]


def _noticed(findings: Findings, first: str, second: str) -> list[Comparison]:
    between = [each for each in findings.moving_comparisons if {each.first, each.second} == {first, second}]
    return [each.seen_from(first) for each in between if noticeable(each)]
