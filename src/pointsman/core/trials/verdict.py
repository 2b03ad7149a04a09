"""Verdict: whether the trial is worse than the base, and what speaks for it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass


class Quantity(enum.StrEnum):
    """What arms are compared by."""

    TTFT = "ttft"
    ITL = "itl"
    SPEED = "speed"
    """Output tokens a second of a request's whole time."""
    CACHED = "cached"
    """Share of prompt tokens that were cached; tells why, and is not judged."""
    FAILED = "failed"


class Judgement(enum.StrEnum):
    """What can be said so far."""

    WORSE = "worse"
    BETTER = "better"
    NO_WORSE = "no worse"
    """Every judged quantity is within the margin."""
    UNKNOWN = "no difference yet"


JUDGED = 4
"""Tests that each get their part of the chance of a false alarm: TTFT, ITL, speed, failures."""


@dataclass(frozen=True, slots=True)
class Change:
    """How much longer times are in the trial, as a ratio of typical (geometric mean) times: 1.2 is 20 % longer.

    The limits hold at all looks together.
    """

    quantity: Quantity
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement and one sentence that says why."""

    judgement: Judgement
    why: str


_TEXT = {Quantity.TTFT: "TTFT", Quantity.ITL: "ITL", Quantity.SPEED: "time per output token"}


def judge(changes: Iterable[Change], failure_evidence: float, alpha: float, worse_by: float) -> Verdict:
    """The verdict on all judged quantities.

    Args:
        failure_evidence: of FailureBet.
        alpha: chance that two equal arms are ever called different, in one direction, over all quantities.
        worse_by: margin; a trial is worse when a time is certainly longer than the base's by more than this part.
    """
    known = [change for change in changes if math.isfinite(change.high) or math.isfinite(change.low)]
    if failure_evidence >= JUDGED / alpha:
        return Verdict(Judgement.WORSE, f"requests fail more often: {failure_evidence:.0f} to 1 against chance")
    worst = max(known, key=lambda change: change.low, default=None)
    if worst is not None and worst.low > 1.0 + worse_by:
        return Verdict(Judgement.WORSE, _sentence(worst))
    best = min(known, key=lambda change: change.high, default=None)
    if best is None:
        return Verdict(Judgement.UNKNOWN, "too few requests or sessions of one arm have ended")
    open_ = [change for change in known if change.high > 1.0 + worse_by]
    if open_:
        widest = max(open_, key=lambda change: change.high)
        good = f"{_sentence(best)}, but " if best.high < 1.0 else ""
        return Verdict(Judgement.UNKNOWN, f"{good}{_sentence(widest)}, which may still be worse")
    if best.high < 1.0:
        return Verdict(Judgement.BETTER, _sentence(best))
    return Verdict(Judgement.NO_WORSE, f"nothing is longer by more than {_percent(max(c.high for c in known) - 1)}")


def _sentence(change: Change) -> str:
    return (
        f"{_TEXT[change.quantity]} is {_percent(change.ratio - 1)} (between {_percent(change.low - 1)} and "
        f"{_percent(change.high - 1)}) of the base's"
    )


def _percent(part: float) -> str:
    return f"{100 * part:+.1f} %"
