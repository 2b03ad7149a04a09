"""Why a request was slow: its time to the first token, shared out among what it was spent on.

What was observed is taken apart in this order, each part bounded by what is left:

    tries         from arrival to the dispatch that was answered, where others failed before; else front_end
    slow worker   (1 − 1/f) of the rest, f = how many times as long as its like the worker takes
    lost cache    tokens thought cached that the engine had to compute, at a prompt token's time
    unknown cache tokens that another worker computed before, without that being known when it was decided
    prompt        the other tokens that had to be computed
    queue         what was predicted to go before it
    waiting       what remains: nobody predicted it

Of a request to which another worker gave KV these are, from the dispatch on:

    prefill       until the other worker had computed the prompt
    transfer      moving the KV, by the engine's word or until the first token
    waiting       what remains

and of one for which nothing came, though it was to, *fallback* comes after tries: the time until that was clear.

Of a stream that went on elsewhere only the last decision is kept: its first token is all *earlier*, its time between
tokens *moved*, as far as its longest gap goes, and *batch*.

Times of a token are those recorded with the decision, or else the least of the requests around it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pointsman.core.timing.observer import SHORTEST_STEP_MS
from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.legs_of_row import was_moved
from pointsman.edge.decisions.prefixes import latest_with
from pointsman.edge.decisions.words import count, listed, ms
from pointsman.edge.telemetry.decision_row import DecisionRow

_WORTH_SHARE = 0.2
"""Of the time: lesser causes are not named beside the first."""
_SLOWER = 1.5
"""Times as long as its like from which on a worker counts as slow."""
_SLOWER_TOKENS = 2.0
"""The same by the times between tokens alone, which depend on the load, too."""
_FEWEST = 3
"""Rows of a worker that its speed is told from."""
_BESIDE = 7
"""Rows of the worker on each side of the request that its speed is told from."""
_AROUND = 30
"""Rows of the others, next to the request."""
_COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that took time."""

    kind: str
    """tries, front_end, earlier, fallback, slow_worker, lost_cache, unknown_cache, prompt, queue, prefill, transfer,
    waiting, batch, moved."""
    ms: float
    text: str


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the recorded state says of the chosen worker; see `Recorded`."""

    token_ms: float
    """A prompt token's time."""
    queue_ms: float
    """Part of the predicted time to the first token that is not the prompt's own."""
    times_others: float
    """A usual step there over that of the other workers."""


Ratio = Callable[[DecisionRow], "float | None"]
"""Observed over predicted, of one request."""


def slow_first_token(
    row: DecisionRow,
    around: Sequence[DecisionRow],
    facts: Mapping[str, WorkerFacts],
    times: StepTimes | None = None,
) -> list[Cause]:
    """What its time to the first token was spent on, the most first; nothing if no token came.

    Args:
        around: other rows of the same front ends.
        facts: of workers, by id, as they are now.
        times: from the recorded state of the fleet.
    """
    if row.first_token_ms is None or row.worker is None:
        return []
    causes: list[Cause] = []
    if _went_on(row):
        who = listed(list(dict.fromkeys(row.failed_at))) or "another worker"
        return [Cause("earlier", row.first_token_ms, f"{who} had it then, of which nothing more is kept")]
    before = min(row.first_token_ms, row.dispatched_ms or 0.0)
    if row.attempts > 1:
        causes.append(Cause("tries", before, f"{count(row.attempts - 1, 'attempts')} at other workers failed before"))
    else:
        causes.append(Cause("front_end", before, "it was not sent before (tokenizing, deciding)"))
    left = row.first_token_ms - before
    if was_moved(row):
        causes += _elsewhere(row, left)
        return sorted((cause for cause in causes if cause.ms > 0), key=lambda cause: -cause.ms)
    if row.legs is not None:
        giver = row.legs.prefill or row.legs.source
        lost_ms = min(left, row.legs.lost_ms or 0.0)
        left -= lost_ms
        causes.append(Cause("fallback", lost_ms, f"{row.worker} waited for KV from {giver}, and nothing came"))
    learned_ms = 0.0 if times is None else times.token_ms
    # What was predicted of one that was to get KV was predicted of other workers.
    own = None if row.legs is not None else _own_ratio(row, _token_ms(row, around, learned_ms))
    factor = slowness(row, own, around, facts, times, ttft_ratio)
    if factor >= _SLOWER:
        spent = left * (1 - 1 / factor)
        left -= spent
        causes.append(Cause("slow_worker", spent, f"{row.worker} takes {factor:.1f} times as long as the others"))
    else:
        factor = 1.0
    causes += _computing(row, around, facts, times, left, factor)
    return sorted((cause for cause in causes if cause.ms > 0), key=lambda cause: -cause.ms)


def slow_tokens(
    row: DecisionRow,
    around: Sequence[DecisionRow],
    facts: Mapping[str, WorkerFacts],
    times: StepTimes | None = None,
) -> list[Cause]:
    """What the mean time between its tokens was spent on, the most first."""
    itl = row.itl_ms
    if itl is None or row.worker is None:
        return []
    if row.migrations:
        steps = row.output_tokens / max(1, row.sequences) - 1
        gap = min(itl, (row.gap_ms or 0.0) / max(1.0, steps))
        causes = [
            Cause("moved", gap, f"its stream went on elsewhere {count(row.migrations, 'times')}"),
            Cause("batch", itl - gap, "several workers had it, each with its own times"),
        ]
        return sorted((cause for cause in causes if cause.ms > 0), key=lambda cause: -cause.ms)
    factor = slowness(row, itl_ratio(row), around, facts, times, itl_ratio)
    causes = []
    left = itl
    if factor >= _SLOWER:
        left = itl / factor
        text = f"{row.worker} takes {factor:.1f} times as long as the others"
        causes.append(Cause("slow_worker", itl - left, text))
    expected = (
        None
        if row.predicted_tpot_ms is None
        else min(left, row.predicted_tpot_ms / (1.0 if times is None else max(1.0, times.times_others)))
    )
    load = _load(row)
    if expected is None:
        causes.append(Cause("batch", left, f"with {count(load, 'requests')} beside it, no time was predicted"))
    else:
        causes.append(Cause("batch", expected, f"that was expected, with {count(load, 'requests')} beside it"))
        causes.append(
            Cause("waiting", left - expected, "that nobody predicted: work that came to the engine after it was sent")
        )
    return sorted((cause for cause in causes if cause.ms > 0), key=lambda cause: -cause.ms)


def _went_on(row: DecisionRow) -> bool:
    """Whether its first token had come before it was sent to the worker that the row tells of."""
    sent_ms, first_ms = row.dispatched_ms, row.first_token_ms
    return row.migrations > 0 and sent_ms is not None and first_ms is not None and sent_ms > first_ms


def slow_sentence(row: DecisionRow, causes: Sequence[Cause], what: str = "first token") -> str:
    """One sentence: the largest causes. Empty if there is none."""
    total = sum(cause.ms for cause in causes)
    if not causes or total <= 0:
        return ""
    named = [causes[0], *(cause for cause in causes[1:3] if cause.ms >= _WORTH_SHARE * total)]
    told = [f"{ms(cause.ms)} because {cause.text}" for cause in named]
    if what == "first token":
        return f"its first token came after {ms(total)}: {listed(told)}"
    return f"its tokens came {ms(total)} apart: {listed(told)}"


# ---- what it computed


def _elsewhere(row: DecisionRow, left_ms: float) -> list[Cause]:
    """What other workers had to do with it."""
    legs, causes = row.legs, []
    if legs is None:
        return []
    prefill_ms = min(left_ms, legs.prefill_ms or 0.0)
    if prefill_ms:
        causes.append(Cause("prefill", prefill_ms, f"{legs.prefill} computed its prompt"))
    transfer_ms = min(left_ms - prefill_ms, legs.transfer_ms or 0.0)
    if transfer_ms:
        size = "" if not legs.moved_bytes else f", {legs.moved_bytes / 1e6:,.1f} MB"
        giver = legs.prefill or legs.source
        causes.append(Cause("transfer", transfer_ms, f"KV was moved from {giver} to {row.worker}{size}"))
    rest = left_ms - prefill_ms - transfer_ms
    causes.append(Cause("waiting", rest, f"{row.worker} took so long for the rest"))
    return causes


def _computing(
    row: DecisionRow,
    around: Sequence[DecisionRow],
    facts: Mapping[str, WorkerFacts],
    times: StepTimes | None,
    left_ms: float,
    factor: float,
) -> list[Cause]:
    """Lost and unknown cache, the prompt, the queue and the rest, as they would be at a worker like the others."""
    known = 1.0 if times is None else max(1.0, times.times_others)
    token_ms = _token_ms(row, around, 0.0 if times is None else times.token_ms * factor / known) / factor
    found = row.cached if row.cached_reported is None else row.cached_reported
    lost = _lost_tokens(row)
    new = max(0, row.prompt_tokens - found)
    causes = []

    def spend(kind: str, wanted_ms: float, text: str) -> None:
        nonlocal left_ms
        spent = max(0.0, min(left_ms, wanted_ms))
        left_ms -= spent
        causes.append(Cause(kind, spent, text))

    spend("lost_cache", lost * token_ms, _lost(row, lost, facts))
    unknown, text = _unknown(row, around, facts)
    unknown = min(unknown, new - lost)
    if unknown:
        spend("unknown_cache", unknown * token_ms, f"{unknown:,} {text}")
    own = new - lost - unknown
    spend("prompt", own * token_ms, f"{own:,} of its {row.prompt_tokens:,} prompt tokens had to be computed")
    if times is not None:
        spend("queue", times.queue_ms / known, f"of what was known to go before it at {row.worker}")
    fact = facts.get(row.worker or "")
    others = (
        f" ({count(fact.foreign, 'requests')} of others are there now)" if fact is not None and fact.foreign else ""
    )
    spend("waiting", left_ms, f"it waited at {row.worker} for work that was not foreseen when it was sent{others}")
    return causes


def _lost(row: DecisionRow, lost: int, facts: Mapping[str, WorkerFacts]) -> str:
    fact = facts.get(row.worker or "")
    if fact is not None and fact.kv_state not in ("", _COMPLETE) and row.exact:
        reason = f"its KV events are {fact.kv_state}: {fact.kv_reason or 'no reason given'}"
    elif row.exact:
        reason = "evicted meanwhile, or its KV events of that were lost"
    else:
        reason = "it was only guessed from what was sent there"
    return f"{lost:,} tokens thought cached at {row.worker} were not there ({reason})"


def _unknown(row: DecisionRow, around: Sequence[DecisionRow], facts: Mapping[str, WorkerFacts]) -> tuple[int, str]:
    """Tokens that a worker computed before although nobody thought them cached there, and words to that number."""
    before = latest_with(row, around)
    if before is None:
        return 0, ""
    other, shared = before
    thought = {one.worker: one.cached for one in row.candidates}
    holder = other.worker or ""
    if holder not in thought:
        return 0, ""
    found = row.cached if row.cached_reported is None else row.cached_reported
    # Blocks that were begun only, and the last token, are never found again.
    missing = shared - max(thought[holder], found) - row.block_size
    if missing <= max(row.block_size, row.prompt_tokens // 10):
        return 0, ""
    fact = facts.get(holder)
    where = "there" if holder == row.worker else f"at {holder}"
    if fact is not None and fact.kv_state not in ("", _COMPLETE):
        reason = f"KV events of {holder} are {fact.kv_state}: {fact.kv_reason or 'no reason given'}"
    else:
        reason = f"{holder} evicted them, or its KV events of them were lost"
    return missing, (
        f"tokens of it were computed {where} before, for {other.id}, and not known to be cached ({reason})"
    )


def _token_ms(row: DecisionRow, around: Sequence[DecisionRow], learned_ms: float) -> float:
    """How long a new prompt token takes at that worker, as it is now.

    At most as long as in the request around that had the least time for each, as what it waited is in it, too. What
    was learned beforehand is too little where requests with more tokens took longer than that.
    """
    seen = [one for one in (_computed(one) for one in (row, *_nearest(row, around, same=True))) if one is not None]
    most = min((ms / new for new, ms in seen), default=0.0)
    if not learned_ms:
        return most
    return max(learned_ms, min(most, _slope([one for one in seen if one != _computed(row)])))


def _computed(row: DecisionRow) -> tuple[int, float] | None:
    """New prompt tokens, and the time from its dispatch to its first token; None where nothing was computed there."""
    if was_moved(row):
        return None
    found = row.cached if row.cached_reported is None else row.cached_reported
    new = row.prompt_tokens - found
    if row.first_token_ms is None or new <= 0:
        return None
    lost_ms = 0.0 if row.legs is None else row.legs.lost_ms or 0.0
    return new, row.first_token_ms - (row.dispatched_ms or 0.0) - lost_ms


def _slope(seen: Sequence[tuple[int, float]]) -> float:
    """Median of the time a token more took, over all pairs of requests that are apart by half of the most tokens."""
    apart = max((new for new, _ in seen), default=0) / 2
    slopes = [
        (ms - other_ms) / (new - other) for new, ms in seen for other, other_ms in seen if new - other >= max(1, apart)
    ]
    return max(0.0, statistics.median(slopes)) if slopes else 0.0


# ---- the worker's speed


def slowness(
    row: DecisionRow,
    own: float | None,
    around: Sequence[DecisionRow],
    facts: Mapping[str, WorkerFacts],
    times: StepTimes | None,
    ratio: Ratio,
) -> float:
    """How many times as long as the others the worker takes, by at least two signs of it.

    The request itself took so many times as long as was predicted for a worker like the others; and so did those around
    it, or that is what has been learned of the worker, or its tokens came that much slower than those of others.
    With more requests beside than the others' had, that much more time is no sign of it.

    Args:
        own: what `ratio` says of the request itself.
    """
    known = 1.0 if times is None else times.times_others
    # Those of about the same time only: what is learned of all workers changes predictions, too.
    others = _nearest(row, around, same=False)[: 2 * _BESIDE]
    there = _median(ratio(one) for one in others)
    signs = [known]
    apart_there = _median(_apart_ms(one) for one in others)
    # It may have turned slow just then, or have been so until then.
    for side in _sides(row, around):
        here = _median(ratio(one) for one in side)
        if here is not None and there:
            signs.append(known * here / there / _busier(side, others))
        apart = _median(_apart_ms(one) for one in side)
        if apart is not None and apart_there:
            slower = apart / apart_there / _busier(side, others)
            signs.append(slower if slower >= _SLOWER_TOKENS else 1.0)
    fact = facts.get(row.worker or "")
    if fact is not None and fact.factor is not None:
        signs.append(fact.factor)
    if own is None:
        return max(signs)
    return min(max(signs), known * own / (there or 1.0) / _busier([row], others))


def _busier(those: Sequence[DecisionRow], others: Sequence[DecisionRow]) -> float:
    """How many times as many requests were at the worker of those, with each of them; at least 1."""
    here = _median_of([1.0 + _load(one) for one in those])
    there = _median_of([1.0 + _load(one) for one in others])
    return max(1.0, here / there)


def _apart_ms(row: DecisionRow) -> float | None:
    """Time between its tokens; None where they came together, held up on their way."""
    return row.itl_ms if row.itl_ms is not None and row.itl_ms >= SHORTEST_STEP_MS else None


def _load(row: DecisionRow) -> int:
    """Requests that were beside it at its worker when it was sent."""
    return next((one.load for one in row.candidates if one.worker == row.worker), 0)


def _median_of(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 1.0


def ttft_ratio(row: DecisionRow) -> float | None:
    """Observed over predicted; None where much had to be computed that was thought cached: that was not predicted.

    Nor where another worker had part in it.
    """
    if row.legs is not None:
        return None
    return None if _lost_tokens(row) > row.prompt_tokens // 10 else _own_ratio(row, 0.0)


def _own_ratio(row: DecisionRow, token_ms: float) -> float | None:
    """The same, as if it had been known which tokens are not cached."""
    if row.ttft_ms is None or not row.predicted_ttft_ms:
        return None
    return row.ttft_ms / (row.predicted_ttft_ms + _lost_tokens(row) * token_ms)


def _lost_tokens(row: DecisionRow) -> int:
    """Thought cached, and not found."""
    return 0 if row.cached_reported is None else max(0, row.cached - row.cached_reported)


def itl_ratio(row: DecisionRow) -> float | None:
    """Observed over predicted."""
    return None if row.itl_ms is None or not row.predicted_tpot_ms else row.itl_ms / row.predicted_tpot_ms


def _nearest(row: DecisionRow, around: Sequence[DecisionRow], *, same: bool) -> list[DecisionRow]:
    """In time, of the same worker or of all others."""
    rows = [one for one in around if one.id != row.id and one.worker is not None and (one.worker == row.worker) is same]
    return sorted(rows, key=lambda one: abs(one.at_ms - row.at_ms))[:_AROUND]


def _sides(row: DecisionRow, around: Sequence[DecisionRow]) -> tuple[list[DecisionRow], list[DecisionRow]]:
    """The few of the same worker just before and just after."""
    its = _nearest(row, around, same=True)
    before = [one for one in its if one.at_ms <= row.at_ms]
    after = [one for one in its if one.at_ms >= row.at_ms]
    return before[:_BESIDE], after[:_BESIDE]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) >= _FEWEST else None
