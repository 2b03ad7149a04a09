"""In words: whether a coordination layer is worth it, and which policy."""

from __future__ import annotations

from pointsman.app.advice import figures
from pointsman.app.advice.choice import DECIDES, mean_of
from pointsman.app.advice.findings import AWARE, Findings
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
    too_little,
    undecided,
    wins,
    worth,
)
from pointsman.app.experiments.comparison import Comparison
from pointsman.app.experiments.verdict import listed, sentences

_LEAST_LOADED = "least_loaded"


def headline(findings: Findings) -> str:
    """The answer in one or two sentences."""
    grade = worth(findings)
    if findings.together.workers == 1:
        said = "No. With one worker there is nothing to choose between: a coordination layer makes nothing faster."
        needed = findings.sizes.get(findings.plain)
        more = needed is not None and needed.value != 1
        return f"{said} But this load needs more than one worker: ask again with as many." if more else said
    if grade is Worth.UNKNOWN:
        if not too_little(findings) and undecided(findings):
            return (
                f"{findings.question.seeds} seeds can't tell. More requests kept the SLO with {findings.aware} than "
                f"with {findings.plain}, but that may be chance: ask again with --seeds {ENOUGH_SEEDS} or more."
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
        return (
            f"No. {_balancer(findings).capitalize()} does as well here: policies that know what is cached make no "
            "noticeable difference."
        )
    said = "; ".join(_reason(findings, reason) for reason in _told(findings))
    if grade is Worth.YES:
        return f"Yes. {said[0].upper()}{said[1:]}."
    kept = mean_of(findings.policies[findings.plain], "goodput_share") >= findings.question.target
    slo = f"The SLO is kept without it, by {_balancer(findings)}" if kept else "It does not save the SLO"
    return f"A little. {slo}; but {said}.{_one_would_do(findings)}"


def _one_would_do(findings: Findings) -> str:
    size, lasts_ms = findings.sizes.get(findings.plain), findings.excerpt.trace.duration_ms
    if size is None or size.value != 1 or lasts_ms < settling_ms(findings.question):
        return ""
    return " One worker would do for this load, and with one there is nothing to choose between."


def coordination(findings: Findings) -> list[str]:
    """Policy by policy: what was measured and how sure it is."""
    if findings.together.workers == 1 or not findings.policies:
        return []
    return sentences(findings.policies, findings.comparisons, DECIDES)


def policy(findings: Findings) -> list[str]:
    """Which one, and what it needs."""
    if findings.together.workers == 1:
        return ["Any: with one worker all policies do the same."]
    if too_little(findings) or undecided(findings):
        return []
    chosen, aware = recommended(findings), findings.aware
    said = []
    if chosen == findings.plain:
        if chosen == _LEAST_LOADED:
            said.append(
                "Take least_loaded, or a load balancer that sends to the worker with the fewest open requests: it is "
                f"better than taking turns ({_wins(findings, _LEAST_LOADED, 'round_robin')})."
            )
        elif aware is None:
            said.append("Take round_robin, or any load balancer: fewest open requests (least_loaded) does no better.")
        else:
            said.append("Take the simplest, round_robin or any load balancer: no other is noticeably better.")
        return said
    both = [name for name in AWARE if name in findings.policies]
    if chosen == "prefix":
        said.append("Take prefix. It remembers what it sent where, so it needs nothing of the engines.")
        if "kv" in both:
            said.append("kv, which hears from the engines what they hold, is not noticeably better here.")
    else:
        said.append("Take kv. It needs engines that send KV events (vLLM and SGLang do).")
        if "prefix" in both:
            said.append(f"prefix does without them{_behind(findings)}.")
    return said


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
    return f"{aware} is faster than {plain}: {_wins(findings, aware, plain, with_values=True)}"


def _wins(findings: Findings, first: str, second: str, *, with_values: bool = False) -> str:
    found = [each for each in wins(findings.comparisons, first, second) if each.key in LATENCIES]
    if not found:
        found = wins(findings.comparisons, first, second)
    return listed([figures.amount(each) + (_values(findings, each) if with_values else "") for each in found[:2]])


def _values(findings: Findings, each: Comparison) -> str:
    """What a share is a share of: half of 60 ms matters less than half of 6 s."""
    ours, theirs = (figures.measured(findings.policies[name], each.key) for name in (each.first, each.second))
    return f" ({ours}, not {theirs})"


def _behind(findings: Findings) -> str:
    said = _wins(findings, "kv", "prefix")
    if said:
        return f", but kv is better ({said})"
    if {"kv", "prefix"} <= findings.loads.keys():
        ours, theirs = (figures.load(findings.loads[name]) for name in ("prefix", "kv"))
        return f", but takes {ours} of this load and kv {theirs}"
    return ""


def _balancer(findings: Findings) -> str:
    if findings.plain == _LEAST_LOADED:
        return "a load balancer that counts open requests (least_loaded)"
    return "any load balancer (round_robin)"
