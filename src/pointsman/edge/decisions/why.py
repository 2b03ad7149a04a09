"""One sentence of why a worker took a request: true of the record, and nothing that the record does not show.

The reasons are the differences between the chosen worker's terms and those of the runner-up. What made the choice is
not guessed: where a policy chooses by something else than a score (chance, turn, hash), the sentence says that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from pointsman.core.model.view import Exclusion
from pointsman.edge.decisions.legs_of_row import kind_of
from pointsman.edge.decisions.plans import ALONE
from pointsman.edge.decisions.why_moved import why_moved
from pointsman.edge.decisions.words import amount, count, listed, ms
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedCandidate

_SHOWN_SHARE = 0.1
"""Of the largest difference: smaller ones are not worth a word."""
_MOST_REASONS = 3
_NOTHING = 5e-4
"""In ms or tokens."""
_PINNED = Exclusion.PINNED_ELSEWHERE.text
_CACHE_TERMS = ("ttft_ms", "prefill_ms", "new_tokens", "uncached_tokens")
"""Less of these goes with more cached tokens."""
_PREFILL_TERMS = ("prefill_ms", "new_tokens", "uncached_tokens")
_LESS_PREFILL, _LESS_COMPUTED = " less prefill", " less to compute"
_ON_TURN = ("round_robin",)
_BY_HASH = ("session",)
_BY_CHANCE = ("random",)
_TIES_BY_CHANCE = ("cost", "kv", "prefix", "least_loaded")

_UNDECIDED = {
    499: "the client left before",
    500: "the policy failed; the log of the front end says why",
}
"""By the status that the client got."""

Parts = Mapping[str, Mapping[str, float]]
"""What a term is made of, by worker: for example queue_ms and prefill_ms of ttft_ms."""


def why(row: DecisionRow, ttft_parts: Parts | None = None) -> str:
    """The sentence, without the point at its end.

    Args:
        ttft_parts: what `ttft_ms` of the candidates is made of, where the recorded state of the fleet tells.
    """
    sentence = _main(row, ttft_parts or {}) if kind_of(row) == ALONE else f"{why_moved(row)}{_next(row)}"
    extra = [part for part in (_attempts(row), _note(row)) if part]
    return "; ".join([sentence, *extra])


def _next(row: DecisionRow) -> str:
    """The best of the other plans, where that moves KV, too."""
    giver = row.runner_up_prefill or row.runner_up_source
    if giver is None or row.runner_up is None or not row.margin or row.margin < 0:
        return ""
    return f"; {giver} → {row.runner_up} was next, {amount(row.margin, row.unit)} dearer"


def _main(row: DecisionRow, parts: Parts) -> str:
    excluded = [one for one in row.candidates if one.excluded is not None]
    eligible = [one for one in row.candidates if one.excluded is None]
    chosen = next((one for one in row.candidates if one.worker == row.worker), None)
    if row.worker is None:
        return _nobody(row, excluded)
    if chosen is None:
        return f"{row.worker} took it; what it was judged by was not written down"
    others = [one for one in eligible if one is not chosen]
    if not others:
        return _only_one(row, chosen, excluded)
    if row.policy in _ON_TURN:
        who = _of(row, excluded)
        return f"{chosen.worker} took it because it was its turn: of {who} it got its last request longest ago"
    if row.policy in _BY_CHANCE:
        return f"{chosen.worker} took it by chance: it was drawn from {_of(row, excluded)}"
    if row.policy in _BY_HASH and row.unit == "rank":
        first = "" if not chosen.score else f", after {count(round(chosen.score), 'workers')} that can't take it"
        return (
            f"{chosen.worker} took it because the request's route key belongs to it{first}: load and cache play no part"
        )
    drawn = [one for one in others if one.terms.get("drawn")]
    if chosen.terms.get("drawn"):
        return _of_two(row, chosen, drawn)
    return _by_score(row, chosen, others, parts)


def _by_score(row: DecisionRow, chosen: LoggedCandidate, others: list[LoggedCandidate], parts: Parts) -> str:
    if chosen.score is None or others[0].score is None:
        return f"{chosen.worker} took it; the scores were not written down"
    rest = [one for one in others if one.score is not None]
    runner = min(rest, key=lambda one: (one.score or 0.0, one.worker != row.runner_up))
    margin = (runner.score or 0.0) - chosen.score
    if margin == 0:
        return _tie(row, chosen, [one.worker for one in rest if one.score == chosen.score])
    if margin < 0:
        return (
            f"{chosen.worker} took it although {runner.worker} had the lower score "
            f"({amount(runner.score or 0.0, row.unit)}, its own {amount(chosen.score, row.unit)}): {row.policy} "
            "does not go by the score alone"
        )
    reasons = _reasons(row, chosen, runner, parts)
    if reasons:
        return (
            f"{chosen.worker} took it because {reasons[0]}; {runner.worker} was next, {amount(margin, row.unit)} dearer"
            f"{_although(reasons[1], chosen)}"
        )
    if row.unit == "requests":
        return (
            f"{chosen.worker} took it because it has the fewest requests in flight: {chosen.load}, "
            f"{runner.worker}, the next, {runner.load}"
        )
    return (
        f"{chosen.worker} took it because its score is the lowest: {amount(chosen.score, row.unit)}, "
        f"{runner.worker}, the next, {amount(runner.score or 0.0, row.unit)}"
    )


def _tie(row: DecisionRow, chosen: LoggedCandidate, equal: list[str]) -> str:
    who = listed(equal) if len(equal) <= 2 else count(len(equal), "others")
    by = "by chance" if row.policy in _TIES_BY_CHANCE else f"as {row.policy} chose between equals"
    return f"{chosen.worker} took it {by}: {who} had the same score ({amount(chosen.score or 0.0, row.unit)})"


def _reasons(
    row: DecisionRow, chosen: LoggedCandidate, runner: LoggedCandidate, parts: Parts
) -> tuple[str, list[str]] | None:
    """What speaks for the chosen worker, and what for the runner-up all the same; None where no term is told."""
    differences = _differences(chosen, runner, parts)
    largest = max((abs(value) for value in differences.values()), default=0.0)
    worth = {name: value for name, value in differences.items() if abs(value) > max(_NOTHING, _SHOWN_SHARE * largest)}
    better = sorted((name for name in worth if worth[name] > 0), key=lambda name: -worth[name])[:_MOST_REASONS]
    worse = sorted((name for name in worth if worth[name] < 0), key=lambda name: worth[name])[:_MOST_REASONS]
    if not better:
        return None
    told = [_PHRASES.get(name, _other(name))[0](worth[name]) for name in better]
    return _with_cache(row, chosen, runner, better, told), [
        _PHRASES.get(name, _other(name))[1](-worth[name]) for name in worse
    ]


def _differences(chosen: LoggedCandidate, runner: LoggedCandidate, parts: Parts) -> dict[str, float]:
    """The runner-up's terms less those of the chosen, with ttft_ms taken apart where that is possible.

    A completion begins with the wait for the first token: only the rest of it is another difference.
    """
    mine, its = dict(chosen.terms), dict(runner.terms)
    for terms in (mine, its):
        if "completion_ms" in terms and "ttft_ms" in terms:
            terms["decode_ms"] = terms.pop("completion_ms") - terms["ttft_ms"]
    if chosen.worker in parts and runner.worker in parts and "ttft_ms" in mine and "ttft_ms" in its:
        del mine["ttft_ms"], its["ttft_ms"]
        mine.update(parts[chosen.worker])
        its.update(parts[runner.worker])
    names = [name for name in mine if name in its and name.endswith(("_ms", "_tokens"))]
    return {name: its[name] - mine[name] for name in names}


def _with_cache(
    row: DecisionRow, chosen: LoggedCandidate, runner: LoggedCandidate, better: list[str], told: list[str]
) -> str:
    """What it holds leads the sentence where that has a part in the first reason, and ends it in a later one."""
    if chosen.cached <= runner.cached or not set(better) & set(_CACHE_TERMS):
        return f"it means {listed(told)}"
    if better[0] not in _CACHE_TERMS:
        held = f"{chosen.cached:,} of {_prompt(row)}, {runner.worker} {runner.cached:,}"
        return f"it means {listed(told)} (it holds {held})"
    fact = f"it holds {chosen.cached:,} of {_prompt(row)} ({runner.worker}: {runner.cached:,})"
    if better[0] in _PREFILL_TERMS:
        rest = f", and it means {listed(told[1:])}" if told[1:] else ""
        return (
            f"{fact}, which saves {told[0].removesuffix(_LESS_PREFILL).removesuffix(_LESS_COMPUTED)} of prefill{rest}"
        )
    return f"{fact} and means {listed(told)}"


def _prompt(row: DecisionRow) -> str:
    """As the decision went by it: what is thought cached is counted the same way."""
    if row.prompt_expected is None:
        return f"{row.prompt_tokens:,} prompt tokens"
    return f"{row.prompt_expected:,} expected prompt tokens"


def _although(worse: list[str], chosen: LoggedCandidate) -> str:
    return f", although {chosen.worker} means {listed(worse)}" if worse else ""


def _of_two(row: DecisionRow, chosen: LoggedCandidate, drawn: list[LoggedCandidate]) -> str:
    if not drawn:
        return f"{chosen.worker} took it: it was one of two drawn by chance; the other one was not written down"
    other = drawn[0]
    if other.load == chosen.load:
        return (
            f"{chosen.worker} took it by chance: it was drawn first of two, {other.worker} is as loaded ({chosen.load})"
        )
    return (
        f"{chosen.worker} took it because of two drawn by chance it has fewer requests in flight: {chosen.load}, "
        f"{other.worker} {other.load}"
    )


def _only_one(row: DecisionRow, chosen: LoggedCandidate, excluded: list[LoggedCandidate]) -> str:
    if row.workers <= 1:
        return f"{chosen.worker} took it because no other worker serves {row.model}"
    if excluded and all(one.excluded == _PINNED for one in excluded):
        return f"{chosen.worker} took it because the request is pinned to it"
    return f"{chosen.worker} took it because nobody else could: {_counts(row, excluded)}"


def _nobody(row: DecisionRow, excluded: list[LoggedCandidate]) -> str:
    if not row.policy:
        return f"nobody decided: {_UNDECIDED.get(row.http, 'the request ended before')}"
    if not row.workers:
        return f"nobody took it: no worker serves {row.model}"
    if len(excluded) < len(row.candidates):
        return f"nobody took it: {row.policy} chose no worker, though {_of(row, excluded)} could take it"
    return f"nobody took it: {_counts(row, excluded)}"


def _counts(row: DecisionRow, excluded: list[LoggedCandidate]) -> str:
    """For example `3 workers: draining; gpu-b/0: unreachable`."""
    reasons = Counter(one.excluded or "" for one in excluded)
    told = []
    for reason, number in reasons.most_common():
        who = [one.worker for one in excluded if one.excluded == reason]
        told.append(f"{listed(who) if number <= 2 else count(number, 'workers')} ({reason})")
    unknown = row.workers - len(row.candidates)
    if unknown > 0:
        told.append(f"{count(unknown, 'more')} not written down")
    return listed(told)


def _of(row: DecisionRow, excluded: list[LoggedCandidate]) -> str:
    """Among whom it was chosen."""
    if row.workers > len(row.candidates):
        return count(row.workers, "workers")
    return count(row.workers - len(excluded), "workers")


def _attempts(row: DecisionRow) -> str:
    if row.attempts <= 1:
        return ""
    tried = row.failed_at or [one.worker for one in row.candidates if one.excluded == Exclusion.ALREADY_TRIED.text]
    failed = f": {listed(tried)} had it before" if tried else ""
    moved = f"; its stream went on elsewhere {count(row.migrations, 'times')}" if row.migrations else ""
    return f"that was attempt {row.attempts}{failed}{moved}"


def _note(row: DecisionRow) -> str:
    lifted = "the operator's guards would have left nobody and were lifted" if row.guards_lifted else ""
    return "; ".join(part for part in (lifted, row.note) if part)


Phrase = Callable[[float], str]


def _phrase(less: str, more: str) -> tuple[Phrase, Phrase]:
    """What a difference means: first for the worker of which it is less, then for the other one."""
    return (lambda value: less.format(ms(value))), (lambda value: more.format(ms(value)))


def _tokens(less: str, more: str) -> tuple[Phrase, Phrase]:
    return (lambda value: less.format(amount(value, "tokens"))), (lambda value: more.format(amount(value, "tokens")))


def _other(name: str) -> tuple[Phrase, Phrase]:
    """Of a policy that we don't know."""
    stem, _, unit = name.rpartition("_")
    stem = stem.replace("_", " ")
    return (lambda value: f"{amount(value, unit)} less {stem}"), (lambda value: f"{amount(value, unit)} more {stem}")


_PHRASES = {
    "ttft_ms": _phrase("a first token {} sooner", "a first token {} later"),
    "prefill_ms": _phrase("{} less prefill", "{} more prefill"),
    "queue_ms": _phrase("{} less queue before it", "{} more queue before it"),
    "overhead_ms": _phrase("{} less way to the engine and back", "{} more way to the engine and back"),
    "decode_ms": _phrase("{} less decoding", "{} more decoding"),
    "completion_ms": _phrase("the whole answer {} sooner", "the whole answer {} later"),
    "slowdown_ms": _phrase("{} less slowdown of the requests there", "{} more slowdown of the requests there"),
    "eviction_ms": _phrase("{} less worth of room in the cache", "{} more worth of room in the cache"),
    "slo_ms": _phrase("{} less at stake for promised times", "{} more at stake for promised times"),
    "adapter_ms": _phrase("{} less loading of the LoRA adapter", "{} more loading of the LoRA adapter"),
    "weight_ms": _phrase("{} less by the workers' weights", "{} more by the workers' weights"),
    "placement_ms": _phrase(
        "{} less for what its new content draws there", "{} more for what its new content draws there"
    ),
    "new_tokens": _tokens("{} less to compute", "{} more to compute"),
    "uncached_tokens": _tokens("{} less to compute", "{} more to compute"),
    "waiting_tokens": _tokens("{} less for prompts that wait there", "{} more for prompts that wait there"),
    "load_price_tokens": _tokens("{} less for its load", "{} more for its load"),
}
