"""Whether a layer that knows of caches is worth running, and why."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from pointsman.app.advice.choice import beats, large, noticeable
from pointsman.app.advice.findings import AWARE, Findings
from pointsman.app.advice.limits import Limit, surely_apart
from pointsman.app.experiments.comparison import Comparison
from pointsman.app.experiments.measures import Kind

ENOUGH_SEEDS = 5
"""With fewer, large differences may pass for chance."""
LOAD_WORTH = 0.10
"""Load that one policy takes more than another, from which on it counts."""
_FEWER_WORKERS = 0.5
_MUCH_ROOM = 1.5
"""A fleet that takes so many times its load without help needs none."""
LATENCIES = ("ttft_p99_ms", "ttft_p50_ms", "e2e_p50_ms")


class Worth(enum.StrEnum):
    """The answer to: is a coordination layer worth it here?"""

    YES = "yes"
    """It decides over the SLO, or over how many GPUs are needed."""
    SOME = "some"
    """It makes answers faster, or leaves more room, but the SLO is kept without."""
    NO = "no"
    UNKNOWN = "unknown"
    """The trace does not say what prompts share and load alone is no reason, or too little was simulated."""


class Reason(enum.StrEnum):
    """What an aware policy is better at, surely and noticeably."""

    GOODPUT = "goodput"
    WORKERS = "workers"
    LOAD = "load"
    LATENCY = "latency"


def reasons(findings: Findings, name: str | None = None) -> list[Reason]:
    """Why the aware policy, or the one that is named, is worth having; empty if it isn't, or nothing is known."""
    plain, aware = findings.plain, name or findings.aware
    if aware is None:
        return []
    found = []
    if any(each.key == "goodput_share" for each in wins(findings.comparisons, aware, plain)):
        found.append(Reason.GOODPUT)
    if fewer_workers(findings, aware, plain):
        found.append(Reason.WORKERS)
    if more_load(findings, aware, plain):
        found.append(Reason.LOAD)
    faster = any(each.key in LATENCIES for each in wins(findings.comparisons, aware, plain))
    if faster and beats(aware, plain, findings.comparisons):
        found.append(Reason.LATENCY)
    return found


def worth(findings: Findings) -> Worth:
    """The grade."""
    if findings.together.workers == 1:
        return Worth.NO
    if findings.aware is None or too_little(findings):
        return Worth.UNKNOWN
    if undecided(findings):
        return Worth.UNKNOWN
    found = reasons(findings)
    if Reason.GOODPUT in found:
        return Worth.YES
    if found and not much_room(findings) and {Reason.WORKERS, Reason.LOAD} & set(found):
        return Worth.YES
    if found:
        return Worth.SOME
    return Worth.UNKNOWN if findings.traffic.caches is None else Worth.NO


def undecided(findings: Findings) -> bool:
    """Whether an aware policy seems to decide over the SLO or the GPUs, but that may be chance with so few seeds."""
    return seeming(findings) is not None


def seeming(findings: Findings) -> tuple[str, Reason] | None:
    """Which one seems to, and by what."""
    aware, plain = findings.aware, findings.plain
    if aware is None or findings.question.seeds >= ENOUGH_SEEDS or reasons(findings):
        return None
    names = [name for name in dict.fromkeys((aware, *AWARE)) if name in findings.policies]
    names = [name for name in names if not beats(plain, name, findings.comparisons)]
    for name in names:
        if any(
            large(each) and not each.significant and each.seen_from(name).first_is_better
            for each in findings.comparisons
            if {each.first, each.second} == {name, plain} and each.key == "goodput_share"
        ):
            return name, Reason.GOODPUT
    # A fleet with much room needs neither more load nor fewer workers.
    for name in () if much_room(findings) else names:
        if seems_fewer_workers(findings, name, plain):
            return name, Reason.WORKERS
        if seems_more_load(findings, name, plain):
            return name, Reason.LOAD
    return None


def too_little(findings: Findings) -> bool:
    """Whether it was interrupted before anything could be said of policies: that nothing was found may still change."""
    if not findings.interrupted:
        return False
    seeds = min((len(runs) for runs in findings.policies.values()), default=0)
    return seeds < findings.question.seeds or not findings.loads


def recommended(findings: Findings) -> str:
    """The policy to take: the aware one where it pays, else the best plain one."""
    return findings.aware if findings.aware is not None and reasons(findings) else findings.plain


def much_room(findings: Findings) -> bool:
    """Whether the fleet takes far more than its load without help."""
    limit = findings.loads.get(findings.plain)
    return limit is not None and limit.value is not None and limit.value >= _MUCH_ROOM


def wins(comparisons: Sequence[Comparison], first: str, second: str) -> list[Comparison]:
    """Where `first` is noticeably better than `second`, seen from `first`."""
    between = [each.seen_from(first) for each in comparisons if {each.first, each.second} == {first, second}]
    return [each for each in between if noticeable(each) and each.first_is_better]


def more_load(findings: Findings, first: str, second: str) -> bool:
    """Whether the fleet surely takes more load with `first`."""
    if not {first, second} <= findings.loads.keys():
        return False
    ours, theirs = findings.loads[first], findings.loads[second]
    if ours.value is None or (theirs.value is not None and ours.value <= theirs.value):
        return False
    return surely_apart(ours, theirs, LOAD_WORTH, Kind.POSITIVE)


def fewer_workers(findings: Findings, first: str, second: str) -> bool:
    """Whether `first` surely needs fewer workers."""
    if not {first, second} <= findings.sizes.keys():
        return False
    ours, theirs = findings.sizes[first], findings.sizes[second]
    if ours.value is None or (theirs.value is not None and ours.value >= theirs.value):
        return False
    return surely_apart(ours, theirs, _FEWER_WORKERS, Kind.COUNT)


def seems_more_load(findings: Findings, first: str, second: str) -> bool:
    """Whether it takes noticeably more with `first`, be it by chance."""
    if not {first, second} <= findings.loads.keys():
        return False
    ours, theirs = (_or_easiest(findings.loads[name]) for name in (first, second))
    return ours >= theirs * (1 + LOAD_WORTH)


def seems_fewer_workers(findings: Findings, first: str, second: str) -> bool:
    """Whether `first` needs a worker less, be it by chance."""
    if not {first, second} <= findings.sizes.keys():
        return False
    ours, theirs = (_or_easiest(findings.sizes[name]) for name in (first, second))
    return ours <= theirs - 1


def _or_easiest(limit: Limit) -> float:
    return limit.easiest if limit.value is None else limit.value
