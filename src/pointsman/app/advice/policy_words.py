"""In words: which policy to take, what it needs, and what to do about the default."""

from __future__ import annotations

from pointsman.app.advice import figures
from pointsman.app.advice.choice import beats
from pointsman.app.advice.findings import DEFAULT, LEAST_LOADED, Findings
from pointsman.app.advice.preference import layer_policy, surely_better
from pointsman.app.advice.worth import recommended, too_little, undecided, wins
from pointsman.app.advice.worth_words import in_latencies
from pointsman.app.experiments.verdict import listed

_EVENTS = "engines that send KV events (vLLM and SGLang do)"


def policy(findings: Findings) -> list[str]:
    """Which one, and what it needs."""
    if findings.together.workers == 1:
        return [f"Any, so the default ({DEFAULT}) as well: with one worker all policies do the same."]
    if too_little(findings) or undecided(findings):
        return []
    chosen = recommended(findings)
    if chosen == findings.plain:
        return [_plain(findings), *_in_a_layer(findings)]
    if chosen == DEFAULT:
        return [
            f"Take {DEFAULT}, the default: nothing has to be set, and no other{_that_knows(findings)} is noticeably "
            "better.",
            *_default(findings),
        ]
    return [f"Take {chosen} {_instead(findings, chosen)}.", *_set(findings, chosen)]


def _plain(findings: Findings) -> str:
    if findings.plain == LEAST_LOADED:
        return (
            "Take least_loaded, or a load balancer that sends to the worker with the fewest open requests: it is "
            f"better than taking turns ({in_latencies(findings, LEAST_LOADED, 'round_robin')})."
        )
    return "Take the simplest, round_robin or any load balancer: no other is noticeably better."


def _in_a_layer(findings: Findings) -> list[str]:
    if DEFAULT not in findings.policies:
        return []
    name = layer_policy(findings)
    if name == DEFAULT:
        return [f"Where pointsman runs, nothing has to be set: its default, {DEFAULT}, is not noticeably worse."]
    return [f"Where pointsman runs, set {name} {_instead(findings, name)}."]


def _that_knows(findings: Findings) -> str:
    """One that does not may be, at this load."""
    return " that knows what is cached" if beats(findings.plain, DEFAULT, findings.comparisons) else ""


def _instead(findings: Findings, name: str) -> str:
    if not surely_better(findings, name, DEFAULT):
        plain = findings.plain
        return (
            f"(routing.policy: {name}), which is better than {plain} ({_by(findings, name, plain)}); of the default, "
            f"{DEFAULT}, that is not sure"
        )
    return f"(routing.policy: {name}), which is better than the default, {DEFAULT} ({_by(findings, name, DEFAULT)})"


def _default(findings: Findings) -> list[str]:
    """What the default needs, and what others that know what is cached do."""
    if findings.traffic.caches is None:
        return []
    said = f"It was simulated with {_EVENTS}"
    if "prefix" in findings.policies:
        said += f"; prefix does without them{_against(findings, DEFAULT, 'prefix')}"
    return [f"{said}."]


def _set(findings: Findings, chosen: str) -> list[str]:
    """What another one needs."""
    if chosen == "prefix":
        return [
            "It remembers what it sent where, so it needs nothing of the engines.",
            "kv, which hears from the engines what they hold, is not noticeably better here.",
        ]
    return [f"It needs {_EVENTS}; prefix does without them{_against(findings, chosen, 'prefix')}."]


def _against(findings: Findings, ours: str, theirs: str) -> str:
    if surely_better(findings, ours, theirs):
        return f", but {ours} is better ({_by(findings, ours, theirs)})"
    return " and is not noticeably worse"


def _by(findings: Findings, first: str, second: str) -> str:
    """By how much one is better than another, on measures that decide, else by the load that it takes."""
    found = wins(findings.comparisons, first, second)
    if found:
        return listed([figures.amount(each) for each in found[:2]])
    ours, theirs = (figures.load(findings.loads[name], with_spread=False) for name in (first, second))
    # "Not less than" would be at least.
    return f"{ours} of this load, {'not' if findings.loads[second].value is not None else f'with {second}'} {theirs}"
