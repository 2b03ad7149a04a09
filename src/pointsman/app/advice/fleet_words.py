"""In words: whether the GPUs are enough, and whether prefill and decode should be apart."""

from __future__ import annotations

import enum
import math

from pointsman.app.advice import figures
from pointsman.app.advice.choice import DECIDES_SPLIT, mean_of, noticeable
from pointsman.app.advice.findings import SPLIT, Findings
from pointsman.app.advice.fleets import counted
from pointsman.app.advice.settling import settling_ms
from pointsman.app.advice.worth import more_load, recommended, seems_more_load, too_little
from pointsman.app.experiments.comparison import Comparison
from pointsman.app.experiments.measures import shown
from pointsman.app.experiments.verdict import listed

_LITTLE_ROOM = 1.2
_FAR_TOO_LARGE = 0.5


class Apart(enum.StrEnum):
    """Should prefill and decode have workers of their own?"""

    YES = "yes"
    NO = "no"
    TIE = "tie"


def gpus(findings: Findings) -> list[str]:
    """Are they enough, what do they carry, how many would do."""
    if too_little(findings):
        return []  # Too few with the policy that happened to be simulated may be enough with another.
    policy = recommended(findings)
    runs, fleet, question = findings.policies.get(policy), findings.together, findings.question
    said = []
    if runs:
        share = mean_of(runs, "goodput_share")
        enough = share >= question.target
        used = "GPU" if fleet.gpus == 1 else "GPUs"
        named = "" if fleet.workers == 1 else f" with {policy}"
        said.append(
            f"{fleet.name} ({fleet.gpus} {used}) {_are(fleet.workers)} {'enough' if enough else 'too few'}: "
            f"{shown('goodput_share', share)} of the requests are within the SLO{named}, "
            f"{figures.percent(question.target)} are wanted."
        )
    said.extend(_load(findings, policy))
    said.extend(_size(findings, policy))
    load = findings.loads.get(policy)
    hopeless = findings.traffic.hopeless_share
    never = hopeless > 1 - question.target
    if load is not None and (load.value is None or load.value < 1) and fleet.workers > 1 and not never:
        said.append(
            "Everything else here was compared on this overloaded fleet; ask again with as many GPUs as are needed."
        )
    if never:
        said.append(
            f"No number of these workers keeps this SLO: {figures.percent(hopeless)} of the requests miss it on a "
            f"worker that has nothing else to do (P99 of the first token there, nothing cached: "
            f"{shown('ttft_p99_ms', findings.traffic.idle_ttft_p99_ms)}). Loosen it, or take faster workers."
        )
    return said


def apart(findings: Findings) -> Apart | None:
    """The answer; None: not compared."""
    if findings.split is None:
        return None
    policy = findings.split_policy
    goodput = [each for each in _noticed(findings) if each.key == "goodput_share"]
    if goodput:
        # On a fleet that is too small for either, a few more in time are no reason for what takes less load.
        better = goodput[0].first_is_better and not more_load(findings, policy, SPLIT)
        return Apart.YES if better else Apart.NO
    if more_load(findings, SPLIT, policy):
        return Apart.YES
    if more_load(findings, policy, SPLIT):
        return Apart.NO
    noticed = _noticed(findings)
    return Apart.NO if noticed and not any(each.first_is_better for each in noticed) else Apart.TIE


def stages(findings: Findings) -> list[str]:
    """Prefill and decode apart or not, and in which ratio."""
    answer = apart(findings)
    if findings.split is None or answer is None:
        if findings.together.workers == 1 and not findings.question.fleets.split:
            return ["One worker does both."]
        return []
    split, policy = findings.split, findings.split_policy
    noticed = _noticed(findings)
    better = [figures.amount(each) for each in noticed if each.first_is_better]
    worse = [figures.amount(each) for each in noticed if not each.first_is_better]
    ratio = f"{split.name} (prefill:decode)"
    only = len(findings.question.fleets.split) == 1
    best = f"{ratio} is the only split" if only else f"the best split is {ratio}"
    if answer is Apart.YES:
        said = [f"Yes, {ratio}: better than {findings.together.name} for both stages."]
    elif answer is Apart.NO:
        said = [f"No. {best[0].upper()}{best[1:]}, and {findings.together.name} for both stages do better."]
    elif seems_more_load(findings, SPLIT, policy):
        said = [
            f"No reason that is sure. {best[0].upper()}{best[1:]}; that it takes more load than "
            f"{findings.together.name} for both stages, which are simpler, may be chance."
        ]
    else:
        said = [
            f"No reason to. {best[0].upper()}{best[1:]}; it keeps the SLO no better and no worse than "
            f"{findings.together.name} for both stages, which are simpler."
        ]
    if better:
        said.append(f"Better with {split.name}: {listed(better)}.")
    if worse:
        said.append(f"Worse with {split.name}: {listed(worse)}.")
    if {SPLIT, policy} <= findings.loads.keys():
        ours, theirs = figures.load(findings.loads[SPLIT]), figures.load(findings.loads[policy])
        said.append(f"It takes {ours} of this load; together they take {theirs}.")
    return said


def _noticed(findings: Findings) -> list[Comparison]:
    assert findings.split is not None
    seen = [each.seen_from(findings.split.name) for each in findings.split_comparisons]
    return [each for each in seen if noticeable(each) and each.key in DECIDES_SPLIT]


def _load(findings: Findings, policy: str) -> list[str]:
    limit = findings.loads.get(policy)
    if limit is None:
        return []
    value, share = limit.value, figures.percent(findings.question.target)
    keep, it = ("It keeps", "it does") if findings.together.workers == 1 else ("They keep", "they do")
    if value is None:
        return [f"Even at ×{limit.easiest:g} of this load {it} not keep the SLO for {share} of them."]
    said = [f"{keep} {share} within the SLO up to {figures.load(limit)} of this load."]
    if 1 <= value < _LITTLE_ROOM:
        said.append("That is little room for a busier day.")
    lasts_ms = findings.excerpt.trace.duration_ms / max(value, 1.0)
    if value > 1 and lasts_ms < settling_ms(findings.question):
        said.append(
            f"At that load the traffic is over after {lasts_ms / 1_000:,.3g} s, before the fleet is full: it takes "
            "less of what goes on."
        )
    return said


def _size(findings: Findings, policy: str) -> list[str]:
    size, fleet = findings.sizes.get(policy), findings.together
    if size is None:
        return _scaled(findings, policy)
    others = "".join(
        f"; with {name} {figures.workers(limit)}" for name, limit in findings.sizes.items() if name != policy
    )
    if size.value is None:
        said = f"No fleet of up to {counted(round(size.easiest))} keeps it"
        found = any(limit.value is not None for limit in findings.sizes.values())
        return [f"{said} with {policy}{others}." if found else f"{said}."]
    needed = round(size.value)
    each = fleet.gpus // fleet.workers
    said = f"The fewest that keep it: {figures.workers(size)}, {needed * each} GPU{'' if needed * each == 1 else 's'}"
    said += others
    if needed <= _FAR_TOO_LARGE * fleet.workers:
        said += ". The fleet is far larger than this load needs"
    return [said + "."]


def _scaled(findings: Findings, policy: str) -> list[str]:
    """Where sizes were not simulated: from the load."""
    limit = findings.loads.get(policy)
    if limit is None or limit.value is None or findings.question.fleets.one_kind is not None:
        return []
    about = math.ceil(findings.together.gpus / limit.value)
    return [f"Scaled from that, not simulated: this load needs about {about} GPU{'' if about == 1 else 's'}."]


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
