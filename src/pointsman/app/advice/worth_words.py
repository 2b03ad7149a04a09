"""In words: whether a coordination layer is worth it."""

from __future__ import annotations

from pointsman.app.advice import figures
from pointsman.app.advice.choice import DECIDES, beats, mean_of
from pointsman.app.advice.findings import AWARE, LEAST_LOADED, Findings
from pointsman.app.advice.preference import surely_better
from pointsman.app.advice.settling import settling_ms
from pointsman.app.advice.traffic import NO_REUSE
from pointsman.app.advice.worth import (
    ENOUGH_SEEDS,
    LATENCIES,
    Reason,
    Worth,
    much_room,
    reasons,
    recommended,
    seeming,
    too_little,
    wins,
    worth,
)
from pointsman.app.experiments.comparison import Comparison
from pointsman.app.experiments.verdict import leader, listed, sentences


def headline(findings: Findings) -> str:
    """The answer in one or two sentences."""
    grade = worth(findings)
    if findings.together.workers == 1:
        said = "No. With one worker there is nothing to choose between: a coordination layer makes nothing faster."
        needed = findings.sizes.get(findings.plain)
        more = needed is not None and needed.value != 1
        return f"{said} But this load needs more than one worker: ask again with as many." if more else said
    if grade is Worth.UNKNOWN:
        seems = seeming(findings)
        if not too_little(findings) and seems is not None:
            return (
                f"{findings.question.seeds} seeds can't tell. {_seems(findings, *seems)}, but that may be chance: ask "
                f"again with --seeds {ENOUGH_SEEDS} or more."
            )
        if not too_little(findings):
            room = ", which keeps the SLO with much room to spare" if much_room(findings) else ""
            return (
                "This trace can't tell. It does not say what prompts have in common, so only load could be compared, "
                f"and for that {_balancer(findings)} is enough{room}."
            )
        return "Not known yet: too little was simulated before it was interrupted."
    if grade is Worth.NO:
        caches = findings.traffic.caches
        if caches is not None and caches.share < NO_REUSE:
            return (
                f"No. Prompts have next to nothing in common ({figures.percent(caches.share)} of their tokens came "
                f"before), so knowing what is cached gains nothing; {_balancer(findings)} does as well."
            )
        balancer = _balancer(findings).capitalize()
        behind = [surely_better(findings, findings.plain, name) for name in AWARE if name in findings.policies]
        if behind and all(behind):
            return f"No. {balancer} does better here than policies that know what is cached."
        if any(behind):
            return (
                f"No. {balancer} does as well here as the best policies that know what is cached, and better than "
                "others of them."
            )
        return f"No. {balancer} does as well here: policies that know what is cached make no noticeable difference."
    said = "; ".join(_reason(findings, reason) for reason in _told(findings))
    if grade is Worth.YES:
        return f"Yes. {said[0].upper()}{said[1:]}.{_better_now(findings)}{_load_alone(findings)}"
    slo = _slo(findings)
    return f"A little. {slo}; but {said}.{_better_now(findings)}{_one_would_do(findings)}{_load_alone(findings)}"


def _slo(findings: Findings) -> str:
    """Which of the two keep it, where that is no reason."""
    target, plain, aware = findings.question.target, findings.plain, recommended(findings)
    if mean_of(findings.policies[plain], "goodput_share") >= target:
        return f"The SLO is kept without it, by {_balancer(findings)}"
    if mean_of(findings.policies[aware], "goodput_share") >= target:
        return f"Hardly more requests keep the SLO than with {_balancer(findings)}"
    return "It does not save the SLO"


def _better_now(findings: Findings) -> str:
    """Where more load or fewer workers are the reason, the plain policy may do better at the load as it is."""
    plain, aware = findings.plain, recommended(findings)
    if not beats(plain, aware, findings.comparisons):
        return ""
    by = listed([figures.amount(each) for each in wins(findings.comparisons, plain, aware)[:2]])
    return f" At this load on {findings.together.name} {plain} does better, though: {by}."


def _seems(findings: Findings, name: str, reason: Reason) -> str:
    """What was better by chance or not."""
    plain = findings.plain
    if reason is Reason.GOODPUT:
        return f"More requests kept the SLO with {name} than with {plain}"
    if reason is Reason.WORKERS:
        ours, theirs = (figures.workers(findings.sizes[each]) for each in (name, plain))
        return f"With {name} this load needed {ours}, with {plain} {theirs}"
    ours, theirs = (figures.load(findings.loads[each]) for each in (name, plain))
    return f"With {name} {findings.together.name} took {ours} of this load, with {plain} {theirs}"


def _load_alone(findings: Findings) -> str:
    if findings.traffic.caches is not None:
        return ""
    return " That is by load alone: what prompts have in common this trace does not say."


def _one_would_do(findings: Findings) -> str:
    size, lasts_ms = findings.sizes.get(findings.plain), findings.excerpt.trace.duration_ms
    if size is None or size.value != 1 or lasts_ms < settling_ms(findings.question):
        return ""
    return " One worker would do for this load, and with one there is nothing to choose between."


def coordination(findings: Findings) -> list[str]:
    """Policy by policy: what was measured and how sure it is."""
    if findings.together.workers == 1 or not findings.policies:
        return []
    return [*_gain(findings), *sentences(findings.policies, findings.comparisons, DECIDES)]


def _gain(findings: Findings) -> list[str]:
    """What the policy that is taken gains, where another one leads the comparison without being surely better."""
    chosen, plain = recommended(findings), findings.plain
    if chosen == plain or chosen == leader(findings.policies, findings.comparisons, DECIDES):
        return []
    between = [each.seen_from(chosen) for each in findings.comparisons if {each.first, each.second} == {chosen, plain}]
    sure = [figures.amount(each) for each in between if each.significant]
    return [f"{chosen} against {plain}: {listed(sure) or 'no significant difference at this load'}."]


def _told(findings: Findings) -> list[Reason]:
    """The reasons that a headline has room for."""
    found = reasons(findings)
    if Reason.WORKERS in found and Reason.LOAD in found:
        found.remove(Reason.LOAD)
    aware = findings.aware
    if aware is not None and mean_of(findings.policies[aware], "goodput_share") < findings.question.target:
        # Where the fleet is too small either way, what would be enough says more.
        found.sort(key=lambda reason: reason is not Reason.WORKERS)
    return found[:2]


def _reason(findings: Findings, reason: Reason) -> str:
    plain, aware = findings.plain, findings.aware
    assert aware is not None
    fleet = findings.together.name
    if reason is Reason.GOODPUT:
        ours, theirs = (figures.measured(findings.policies[name], "goodput_share") for name in (aware, plain))
        return f"with {aware} {ours} of the requests on {fleet} are within the SLO, with {plain} {theirs}"
    if reason is Reason.WORKERS:
        ours, theirs = (figures.workers(findings.sizes[name]) for name in (aware, plain))
        return f"with {aware} this load needs {ours}, with {plain} {theirs}"
    if reason is Reason.LOAD:
        ours, theirs = (figures.load(findings.loads[name]) for name in (aware, plain))
        return f"with {aware} {fleet} can take {ours} of this load, with {plain} {theirs}"
    return f"{aware} is faster than {plain}: {in_latencies(findings, aware, plain, with_values=True)}"


def in_latencies(findings: Findings, first: str, second: str, *, with_values: bool = False) -> str:
    """By how much `first` is faster; by how much it is better, where it isn't."""
    found = [each for each in wins(findings.comparisons, first, second) if each.key in LATENCIES]
    if not found:
        found = wins(findings.comparisons, first, second)
    return listed([figures.amount(each) + (_values(findings, each) if with_values else "") for each in found[:2]])


def _values(findings: Findings, each: Comparison) -> str:
    """What a share is a share of: half of 60 ms matters less than half of 6 s."""
    ours, theirs = (figures.measured(findings.policies[name], each.key) for name in (each.first, each.second))
    return f" ({ours}, not {theirs})"


def _balancer(findings: Findings) -> str:
    if findings.plain == LEAST_LOADED:
        return "a load balancer that counts open requests (least_loaded)"
    return "any load balancer (round_robin)"
