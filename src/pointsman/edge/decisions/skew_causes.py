"""What makes load uneven: route keys, metrics, prefixes, workers. Each cause is looked for by itself."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from pointsman.core.model.view import Exclusion
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.power_of_two import PowerOfTwo
from pointsman.core.policies.random_choice import RandomChoice
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.prefixes import block_keys, tokens_of
from pointsman.edge.decisions.shares import TOO_FEW, Shares, median_itl_ms, time_there_ms
from pointsman.edge.decisions.words import count, percent
from pointsman.edge.telemetry.decision_row import DecisionRow

_PART = 0.5
"""Of the requests that the busiest worker has too many, that a cause has to account for."""
_FEW_KEYS = 100
"""Keys a worker; with so many that are alike, the busiest of ten workers has about 1.15 times its share."""
_STICKS = 0.8
_LIFT = 1.2
_FEW_OTHERS = 10
_SLOWER = 1.3
_SMALLER = 0.7
_OFTEN = 0.2
_QUEUE_FULL = Exclusion.QUEUE_FULL.text
_NOT_OF_THE_WORKER = (_QUEUE_FULL, Exclusion.PINNED_ELSEWHERE.text, Exclusion.ALREADY_TRIED.text)
_CACHE_UNITS = ("ms", "tokens")
_KEYLESS = frozenset(policy.name for policy in (LeastLoaded, PowerOfTwo, RandomChoice, RoundRobin))
"""Policies that never look at route keys. Where one worker gets most requests, most of each key's are there anyhow."""


class SkewCause(msgspec.Struct):
    """Why load is uneven."""

    kind: str
    """route_keys, metrics, hot_prefix, workers."""
    text: str
    advice: str
    evidence: dict[str, float | str]


def causes_of(dealt: Shares, facts: Mapping[str, WorkerFacts]) -> list[SkewCause]:
    """All that apply, in the order in which they should be looked at."""
    found: list[SkewCause] = []
    if dealt.by_requests.is_skewed:
        found += _route_keys(dealt)
        found += _hot_prefix(dealt)
        found += _metrics(dealt, facts)
        found += _kept_away(dealt)
    found += _unequal(dealt, facts)
    return found


# ---- route keys


def _route_keys(dealt: Shares) -> list[SkewCause]:
    """Only where keys decide: other policies look at them no more than at the weather."""
    rows = [
        row
        for row in dealt.rows
        if row.session is not None and row.unit not in _CACHE_UNITS and row.policy not in _KEYLESS
    ]
    if len(rows) < _PART * len(dealt.rows):
        return []
    workers = len(dealt.workers)
    keys = Counter(row.session for row in rows)
    total = len(rows)
    effective = total**2 / sum(number**2 for number in keys.values())
    if effective >= _FEW_KEYS * workers:
        return []
    places: dict[str | None, Counter[str]] = defaultdict(Counter)
    for row in rows:
        places[row.session][row.worker or ""] += 1
    stuck = sum(places[key].most_common(1)[0][1] for key in keys)
    busiest, excess = _busiest(dealt)
    here = sorted((its[busiest] for its in places.values()), reverse=True)
    several = sum(number for number in here if number > 1)
    if stuck < _STICKS * total or several < excess * _PART:
        return []
    top = keys.most_common(3)
    carried = sum(number for _, number in top) / total
    return [
        SkewCause(
            kind="route_keys",
            text=(
                f"route keys are too coarse: {count(len(top), 'keys')} of {len(keys):,} carry {percent(carried)} of "
                f"the requests, as if there were {effective:.1f} equal ones for {workers} workers, and the largest "
                f"key at {busiest} has {percent(here[0] / total)}"
            ),
            advice=(
                "route by something finer (a conversation instead of a tenant or an application: routing.route_key), "
                "or let the policy cost decide, which keeps what belongs together as long as that is worth it"
            ),
            evidence={
                "keys": len(keys),
                "effective_keys": round(effective, 2),
                "workers": workers,
                "top_keys_share": round(carried, 4),
                "largest_key_at_busiest_share": round(here[0] / total, 4),
                "requests_at_their_key's_worker": round(stuck / total, 4),
                "busiest": busiest,
            },
        )
    ]


# ---- a hot prefix


def _hot_prefix(dealt: Shares) -> list[SkewCause]:
    """A beginning of prompts that many requests share and that was cached where they went."""
    busiest, excess = _busiest(dealt)
    total, workers = len(dealt.rows), len(dealt.workers)
    everywhere: Counter[str] = Counter()
    here: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    examples: dict[str, tuple[DecisionRow, int]] = {}
    for row in dealt.rows:
        keys = block_keys(row)
        everywhere.update(keys)
        for depth, key in enumerate(keys, 1):
            examples[key] = (row, depth)
        if row.worker == busiest:
            here.update(keys)
            if row.unit in _CACHE_UNITS:
                # A block draws where it is cached at the busiest worker and not at all others that could be chosen.
                mine, other = _cached_blocks(row, len(keys))
                drawn.update(keys[other:mine])
    worth = [
        key
        for key, number in drawn.items()
        if number >= _PART * excess
        and everywhere[key] >= total / workers / 2
        and _drawn_more(here[key], everywhere[key], int(dealt.requests.max()), total)
    ]
    if not worth:
        return []
    # The longest beginning among those that drew nearly as many as the one that drew most.
    most = max(drawn[key] for key in worth)
    key = max((key for key in worth if drawn[key] >= 0.9 * most), key=lambda one: examples[one][1])
    row, depth = examples[key]
    tokens = tokens_of(row, depth)
    share = everywhere[key] / total
    return [
        SkewCause(
            kind="hot_prefix",
            text=(
                f"a hot prefix: {percent(share)} of the requests begin with the same {tokens:,} tokens, and "
                f"{drawn[key]:,} of the {int(dealt.requests.max()):,} that went to {busiest} found them cached there "
                "and not at all others"
            ),
            advice=(
                "more than one worker has to hold it: the policy cost spreads it as far as its load is worth it; with "
                "others, shorten the shared part or serve it by workers of its own"
            ),
            evidence={
                "prefix_tokens": tokens,
                "prefix_share": round(share, 4),
                "drawn_to_busiest": drawn[key],
                "busiest": busiest,
                "excess_requests": round(excess, 1),
            },
        )
    ]


def _drawn_more(here: int, everywhere: int, all_here: int, total: int) -> bool:
    """Of the requests with the prefix a larger part went there than of those without it, if there are any."""
    others = total - everywhere
    return others < _FEW_OTHERS or here / everywhere >= _LIFT * (all_here - here) / others


def _cached_blocks(row: DecisionRow, blocks: int) -> tuple[int, int]:
    """Of its worker, and of the other one with the least that could be chosen, in blocks of the row's keys."""
    tokens = max(1, tokens_of(row, blocks))
    held = {one.worker: round(blocks * min(1.0, one.cached / tokens)) for one in row.candidates if not one.excluded}
    mine = held.pop(row.worker or "", 0)
    return mine, min(held.values(), default=mine)


# ---- metrics


def _metrics(dealt: Shares, facts: Mapping[str, WorkerFacts]) -> list[SkewCause]:
    """Load that engines report and nobody sent, at workers that got too few requests for it."""
    if any(row.sample < 1 for row in dealt.rows):
        return []  # what was sent is not all in the rows
    excess = _unsent_load(dealt)
    found = []
    for number, worker in enumerate(dealt.workers):
        if dealt.ratio(number) >= TOO_FEW or worker not in excess:
            continue
        own, unsent = excess[worker]
        others = [value for other, (_, value) in excess.items() if other != worker]
        usual = statistics.median(others) if others else 0.0
        if unsent < max(1.0, 2 * usual, _PART * own):
            continue
        fact = facts.get(worker)
        now = f" (now {fact.foreign} running, {fact.queued} queued)" if fact is not None else ""
        found.append(
            SkewCause(
                kind="metrics",
                text=(
                    f"stale or wrong metrics, or requests past this front end: {worker} was taken for "
                    f"{own + unsent:.1f} requests busy on average, of which {own:.1f} were sent from here{now}; it got "
                    f"{percent(dealt.ratio(number))} of its share"
                ),
                advice=(
                    f"compare {worker}'s own /metrics (running, waiting) with what it does; if nobody else sends "
                    "there, its metrics are wrong or those of another engine: mend its URL or restart it"
                ),
                evidence={
                    "worker": worker,
                    "own_load": round(own, 2),
                    "load_nobody_sent": round(unsent, 2),
                    "usual_load_nobody_sent": round(usual, 2),
                    "of_fair_share": round(dealt.ratio(number), 3),
                },
            )
        )
    return found


def _unsent_load(dealt: Shares) -> dict[str, tuple[float, float]]:
    """By worker, over the decisions: mean of its requests in flight by the rows, and of the load shown beyond that.

    Decisions within the longest request of the first one are left out: what ran before them is not in the rows.
    """
    spans = [(row.worker or "", *_span(row), row.sequences) for row in dealt.rows]
    if not spans:
        return {}
    begin = min(start for _, start, _, _ in spans)
    longest = sorted(end - start for _, start, end, _ in spans)[int(0.95 * (len(spans) - 1))]
    starts: dict[str, list[float]] = defaultdict(list)
    ends: dict[str, list[float]] = defaultdict(list)
    for worker, start, end, sequences in spans:
        starts[worker] += [start] * sequences
        ends[worker] += [end] * sequences
    for times in (*starts.values(), *ends.values()):
        times.sort()
    own: dict[str, list[float]] = defaultdict(list)
    unsent: dict[str, list[float]] = defaultdict(list)
    for row in dealt.rows:
        at_ms = _span(row)[0]
        if at_ms < begin + longest:
            continue
        for one in row.candidates:
            there = bisect_left(starts[one.worker], at_ms) - bisect_right(ends[one.worker], at_ms)
            own[one.worker].append(there)
            unsent[one.worker].append(max(0, one.load - there))
    return {worker: (statistics.fmean(own[worker]), statistics.fmean(unsent[worker])) for worker in own}


def _span(row: DecisionRow) -> tuple[float, float]:
    start = row.at_ms + (row.dispatched_ms or 0.0)
    return start, start + time_there_ms(row)


# ---- workers


def _kept_away(dealt: Shares) -> list[SkewCause]:
    """Workers that could not be chosen for a good part of the time."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    seen: Counter[str] = Counter()
    for row in dealt.rows:
        for one in row.candidates:
            seen[one.worker] += 1
            if one.excluded is not None:
                reasons[one.worker][one.excluded] += 1
    found = []
    for number, worker in enumerate(dealt.workers):
        if dealt.ratio(number) >= TOO_FEW or not reasons[worker]:
            continue
        reason, times = reasons[worker].most_common(1)[0]
        if times < _OFTEN * seen[worker] or reason in _NOT_OF_THE_WORKER[1:]:
            continue
        share = times / seen[worker]
        kind = "metrics" if reason == _QUEUE_FULL else "workers"
        found.append(
            SkewCause(
                kind=kind,
                text=(
                    f"{worker} could not be chosen in {percent(share)} of the decisions: {reason}; it got "
                    f"{percent(dealt.ratio(number))} of its share"
                ),
                advice=(
                    "see why with `pointsman status`; if its queue is short, its metrics or its threshold are wrong"
                    if kind == "metrics"
                    else "see why with `pointsman status`"
                ),
                evidence={"worker": worker, "reason": reason, "excluded_share": round(share, 4)},
            )
        )
    return found


def _unequal(dealt: Shares, facts: Mapping[str, WorkerFacts]) -> list[SkewCause]:
    """Workers that are slower or smaller than the others."""
    found = []
    uneven = dealt.by_requests.is_skewed
    capacities = [fact.kv_capacity_tokens for fact in facts.values() if fact.kv_capacity_tokens]
    for number, worker in enumerate(dealt.workers):
        fact = facts.get(worker)
        slower, how = _slower(dealt, worker, fact)
        few = dealt.ratio(number) < TOO_FEW
        busy = dealt.busy_ms[number] >= _SLOWER * dealt.fair[number] * dealt.busy_ms.sum()
        # By itself a slow worker gets fewer requests, or as many and is busy for longer.
        if slower >= _SLOWER and (few if uneven else busy):
            effect = "gets fewer requests" if few else "is busy for longer with as many requests"
            found.append(
                SkewCause(
                    kind="workers",
                    text=(
                        f"unequal workers: {worker} takes {slower:.1f} times as long as the others ({how}), so it "
                        f"{effect}"
                    ),
                    advice=(
                        "wanted where its hardware is slower; if it is the same as the others', look for throttling, a "
                        "neighbour on its GPU or other options"
                    ),
                    evidence={
                        "worker": worker,
                        "times_as_long": round(slower, 3),
                        "by": how,
                        "of_fair_share": round(dealt.ratio(number), 3),
                    },
                )
            )
        elif uneven and few and fact is not None and fact.kv_capacity_tokens and len(capacities) > 1:
            usual = statistics.median(capacities)
            if fact.kv_capacity_tokens <= _SMALLER * usual:
                found.append(_smaller(dealt, number, fact.kv_capacity_tokens, usual))
    return found


def _smaller(dealt: Shares, number: int, capacity: int, usual: float) -> SkewCause:
    worker = dealt.workers[number]
    return SkewCause(
        kind="workers",
        text=(
            f"unequal workers: {worker} has room for {capacity:,} KV tokens, usual are {usual:,.0f}, so it keeps and "
            "gets less"
        ),
        advice="wanted where its GPU is smaller; else compare its options (memory share, context length, KV data type)",
        evidence={"worker": worker, "kv_capacity_tokens": capacity, "usual_kv_capacity_tokens": usual},
    )


def _slower(dealt: Shares, worker: str, fact: WorkerFacts | None) -> tuple[float, str]:
    """How many times as long as others it takes: as learned, else by the times between its tokens."""
    if fact is not None and fact.factor is not None and fact.factor >= _SLOWER:
        return fact.factor, "learned from its step times"
    mine = median_itl_ms(dealt.rows, worker)
    others = [
        itl for other in dealt.workers if other != worker and (itl := median_itl_ms(dealt.rows, other)) is not None
    ]
    if mine is None or not others:
        return 1.0, ""
    usual = statistics.median(others)
    return (mine / usual if usual > 0 else 1.0), f"{mine:.3g} ms between tokens, usual are {usual:.3g} ms"


def _busiest(dealt: Shares) -> tuple[str, float]:
    """Who has most beyond its fair share, and how many requests that is."""
    excess = dealt.requests - dealt.fair * len(dealt.rows)
    busiest = int(excess.argmax())
    return dealt.workers[busiest], float(excess[busiest])
