"""Searching the ring: which decisions, in which order, and how many of them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.decisions.record import STATUSES, DecisionRecord

MOST_LIMIT = 1_000
DEFAULT_LIMIT = 100

Measure = Callable[[DecisionRecord], "float | None"]

WORST: Mapping[str, Measure] = {
    "ttft": lambda record: record.arrived_ttft_ms,
    "itl": lambda record: record.itl_ms,
    "e2e": lambda record: record.e2e_ms,
    "error": lambda record: record.error_ms,
}


class QueryError(PointsmanError):
    """A search that can't be made; the message names the parameter."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """None = any."""

    last: int | None = None
    """Only so many of the youngest that match are looked at."""
    worst: str | None = None
    """Those with the largest value first: a key of WORST. Those without a value are left out."""
    limit: int = DEFAULT_LIMIT
    worker: str | None = None
    prefill_worker: str | None = None
    """That was to compute the prompt for `worker`."""
    policy: str | None = None
    status: str | None = None
    model: str | None = None
    tenant: str | None = None
    arm: str | None = None
    since_ms: float | None = None
    """Arrived since, ms since 1970."""
    until_ms: float | None = None
    """Arrived until then, ms since 1970."""

    @classmethod
    def of(cls, params: Iterable[tuple[str, str]], now_ms: float | None = None) -> Query:
        """From the parameters of a URL. Raises QueryError for an unknown or repeated one, or a bad value.

        `last` and `limit` are numbers; where only `last` is given it is the limit, too. `since` and `until` are
        times in ms since 1970, or how long ago (`10m`).
        """
        texts: dict[str, str] = {}
        for name, value in params:
            if name not in _PARAMETERS:
                raise QueryError(name, f"unknown parameter; known: {', '.join(_PARAMETERS)}")
            if name in texts:
                raise QueryError(name, "given twice")
            texts[name] = value
        last = _number(texts, "last", 10**9)
        limit = _number(texts, "limit", MOST_LIMIT)
        worst = texts.get("worst")
        _one_of("worst", worst, WORST)
        _one_of("status", texts.get("status"), STATUSES)
        if limit is None:
            limit = DEFAULT_LIMIT if last is None or worst is not None else min(last, MOST_LIMIT)
        return cls(
            last=last,
            worst=worst,
            limit=limit,
            since_ms=_time("since", texts, now_ms),
            until_ms=_time("until", texts, now_ms),
            **{name: texts[name] for name in _EQUALS if name in texts},
        )

    def matches(self, record: DecisionRecord) -> bool:
        """Whether it is one of those asked for."""
        request, decision = record.request, record.decision
        return (
            (self.status is None or record.status == self.status)
            and (self.since_ms is None or record.arrived_epoch_ms >= self.since_ms)
            and (self.until_ms is None or record.arrived_epoch_ms <= self.until_ms)
            and (self.model is None or request.model == self.model)
            and (self.tenant is None or request.tenant == self.tenant)
            and (self.arm is None or record.arm == self.arm)
            and (self.policy is None or (decision is not None and decision.policy == self.policy))
            and (self.worker is None or (decision is not None and decision.worker == self.worker))
            and (
                self.prefill_worker is None or (decision is not None and decision.prefill_worker == self.prefill_worker)
            )
        )


_EQUALS = ("worker", "prefill_worker", "policy", "status", "model", "tenant", "arm")
_EARLIEST_MS = 1e11
"""In 1973. A smaller number is a duration without its unit, or in seconds: it would match all there is."""
_PARAMETERS = ("last", "worst", "limit", *_EQUALS, "since", "until")


def search(records: Iterable[DecisionRecord], query: Query) -> tuple[list[DecisionRecord], int]:
    """What was found, and how many were looked at that match. `records`: youngest first.

    Costs about 1 ms for 4,096 of them; rows are made of what is found only.
    """
    found: list[DecisionRecord] = []
    for record in records:
        if query.last is not None and len(found) >= query.last:
            break
        if query.matches(record):
            found.append(record)
    if query.worst is None:
        return found[: query.limit], len(found)
    measure = WORST[query.worst]
    valued = [(value, -place) for place, record in enumerate(found) if (value := measure(record)) is not None]
    return [found[-place] for _, place in heapq.nlargest(query.limit, valued)], len(found)


def _number(texts: Mapping[str, str], name: str, most: int) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= most:
        raise QueryError(name, f"expected a number from 1 to {most}, not {text!r}")
    return int(text)


def _one_of(name: str, value: str | None, known: Iterable[str]) -> None:
    if value is not None and value not in known:
        raise QueryError(name, f"expected one of {', '.join(known)}, not {value!r}")


def _time(name: str, texts: Mapping[str, str], now_ms: float | None) -> float | None:
    text = texts.get(name)
    if text is None:
        return None
    now_ms = time.time() * 1000 if now_ms is None else now_ms
    try:
        if not text.replace(".", "", 1).isdigit():
            return now_ms - 1000 * Duration.parse(text).s
        if float(text) >= _EARLIEST_MS:
            return float(text)
    except ValueError:
        pass
    raise QueryError(name, f"expected ms since 1970, or how long ago, such as 10m; not {text!r}")
