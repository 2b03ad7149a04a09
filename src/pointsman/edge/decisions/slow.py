"""Why a request was slow: its time to the first token, shared out among what it was spent on.

What was observed is taken apart in this order, each part bounded by what is left:

    tries         from arrival to the dispatch that was answered, where others failed before; else front_end
    slow worker   (1 − 1/f) of the rest, f = how many times as long as its like the worker takes
    lost cache    tokens thought cached that the engine had to compute, at a prompt token's time
    unknown cache tokens that another worker computed before, without that being known when it was decided
    prompt        the other tokens that had to be computed
    queue         what was predicted to go before it
    waiting       what remains: nobody predicted it

Times of a token are those recorded with the decision, or else the least of the requests around it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.prefixes import latest_with
from pointsman.edge.decisions.words import count, listed, ms
from pointsman.edge.telemetry.decision_row import DecisionRow

_WORTH_SHARE = 0.2
"""Of the time: lesser causes are not named beside the first."""
_SLOWER = 1.25
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
    """tries, front_end, slow_worker, lost_cache, unknown_cache, prompt, queue, waiting, batch."""
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
    before = min(row.first_token_ms, row.dispatched_ms or 0.0)
    if row.attempts > 1:
        causes.append(Cause("tries", before, f"{count(row.attempts - 1, 'attempts')} at other workers failed before"))
    else:
        causes.append(Cause("front_end", before, "it was not sent before (tokenizing, deciding)"))
    left = row.first_token_ms - before
    factor = slowness(row, around, facts, times, ttft_ratio)
    if factor >= _SLOWER:
        spent = left * (1 - 1 / factor)
        left -= spent
        causes.append(Cause("slow_worker", spent, f"{row.worker} takes {factor:.1f} times as long as the others"))
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
    factor = slowness(row, around, facts, times, itl_ratio)
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
    load = next((one.load for one in row.candidates if one.worker == row.worker), 0)
    if expected is None:
        causes.append(Cause("batch", left, f"with {count(load, 'requests')} beside it, no time was predicted"))
    else:
        causes.append(Cause("batch", expected, f"that was expected, with {count(load, 'requests')} beside it"))
        causes.append(
            Cause("waiting", left - expected, "that nobody predicted: work that came to the engine after it was sent")
        )
    return sorted((cause for cause in causes if cause.ms > 0), key=lambda cause: -cause.ms)


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
    token_ms = _token_ms(row, around) / factor if times is None else times.token_ms / known
    found = row.cached if row.cached_reported is None else row.cached_reported
    lost = max(0, row.cached - found)
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
        spend("unknown_cache", unknown * token_ms, text.format(tokens=f"{unknown:,}"))
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
    """Tokens of it that a worker computed before although nobody thought them cached there, and that in words."""
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
        f"{{tokens}} tokens of it were computed {where} before, for {other.id}, and not known to be cached ({reason})"
    )


def _token_ms(row: DecisionRow, around: Sequence[DecisionRow]) -> float:
    """Least time a new prompt token took at that worker in the requests around it; what they waited is in it, too."""
    seen = []
    for one in (row, *_nearest(row, around, same=True)):
        found = one.cached if one.cached_reported is None else one.cached_reported
        new = one.prompt_tokens - found
        if one.first_token_ms is not None and new > 0:
            seen.append((one.first_token_ms - (one.dispatched_ms or 0.0)) / new)
    return min(seen, default=0.0)


# ---- the worker's speed


def slowness(
    row: DecisionRow,
    around: Sequence[DecisionRow],
    facts: Mapping[str, WorkerFacts],
    times: StepTimes | None,
    ratio: Ratio,
) -> float:
    """How many times as long as the others the worker takes, by at least two signs of it.

    The request itself took so many times as long as was predicted for a worker like the others; and so did those around
    it, or that is what has been learned of the worker, or its tokens came that much slower than those of others.
    """
    known = 1.0 if times is None else times.times_others
    own = ratio(row)
    there = _median(ratio(one) for one in _nearest(row, around, same=False))
    signs = [known]
    apart_there = _median(one.itl_ms for one in _nearest(row, around, same=False))
    # It may have turned slow just then, or have been so until then.
    for side in _sides(row, around):
        here = _median(ratio(one) for one in side)
        if here is not None and there:
            signs.append(known * here / there)
        apart = _median(one.itl_ms for one in side)
        if apart is not None and apart_there and apart / apart_there >= _SLOWER_TOKENS:
            signs.append(apart / apart_there)
    fact = facts.get(row.worker or "")
    if fact is not None and fact.factor is not None:
        signs.append(fact.factor)
    if own is None:
        return max(signs)
    return min(max(signs), known * own / (there or 1.0))


def ttft_ratio(row: DecisionRow) -> float | None:
    """Observed over predicted."""
    return None if row.ttft_ms is None or not row.predicted_ttft_ms else row.ttft_ms / row.predicted_ttft_ms


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
