"""Prometheus text of an engine, reduced to the few samples that are asked for.

An engine's metrics are mostly histogram buckets. Lines that nobody asked for are dropped before they are parsed, which
is what makes a probe of many engines affordable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from prometheus_client.parser import text_string_to_metric_families

from pointsman.edge.engines.http import EngineCallError, Trouble

_MOST = 2**50
"""More is no number of anything that an engine has, and could not be added up."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    labels: Mapping[str, str]
    value: float


class Samples:
    """The samples that were found, by name."""

    def __init__(self, by_name: Mapping[str, list[Sample]]) -> None:
        self._by_name = by_name

    def named(self, *names: str) -> list[Sample]:
        """Samples of the first of these names that has any: engines rename their metrics."""
        for name in names:
            found = self._by_name.get(name)
            if found:
                return found
        return []

    def by_rank(self, *names: str, rank_label: str, where: Mapping[str, str] | None = None) -> dict[int, float]:
        """One number a rank: NaN dropped, and of several series of one rank the largest.

        Several series of one rank are the same number told by several API server processes, or by tensor-parallel
        ranks that hold the same requests; adding them up would count twice.
        """
        wanted = where or {}
        numbers: dict[int, float] = {}
        for sample in self.named(*names):
            if math.isnan(sample.value) or any(sample.labels.get(k) != v for k, v in wanted.items()):
                continue
            rank = _rank(sample.labels.get(rank_label))
            numbers[rank] = max(sample.value, numbers.get(rank, -math.inf))
        return numbers


def select(text: str, names: Iterable[str]) -> Samples:
    """Parse the lines of these metrics (full sample names). Raises EngineCallError if one of them is malformed."""
    wanted = frozenset(names)
    starts = tuple(wanted)
    kept = [line for line in text.splitlines() if line.startswith(starts) and _name_of(line) in wanted]
    by_name: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(kept) + "\n"):
            for sample in family.samples:
                by_name.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise EngineCallError(Trouble.MALFORMED, f"metrics are not Prometheus text: {error}") from None
    return Samples(by_name)


def has_prefix(text: str, *prefixes: str) -> bool:
    """True if some sample's name, or the description of one, starts like this."""
    described = tuple(f"# {word} {prefix}" for word in ("HELP", "TYPE") for prefix in prefixes)
    return any(line.startswith(prefixes) or line.startswith(described) for line in text.splitlines())


def count(value: float | None, what: str) -> int:
    """A number of requests or tokens; raises EngineCallError where it is missing, negative or beyond reason."""
    if not _is_count(value):
        raise EngineCallError(Trouble.MALFORMED, f"metrics have no usable value for {what} ({value})")
    return int(value)


def count_or_none(value: float | None) -> int | None:
    """A number of requests or tokens; None where it is missing or unusable."""
    return int(value) if _is_count(value) else None


def capacity_or_none(tokens: float | None) -> int | None:
    """What a cache holds; None where it is missing, nothing or unusable."""
    return count_or_none(tokens) or None


def share_or_none(value: float | None) -> float | None:
    """A fraction, kept within 0 to 1. Metrics named "perc" are fractions too."""
    return None if value is None or not math.isfinite(value) else min(1.0, max(0.0, value))


def _is_count(value: float | None) -> TypeGuard[float]:
    return value is not None and 0 <= value <= _MOST  # NaN is neither


def _name_of(line: str) -> str:
    end = len(line)
    for mark in "{ \t":
        at = line.find(mark)
        if at != -1:
            end = min(end, at)
    return line[:end]


def _rank(label: str | None) -> int:
    try:
        return int(label) if label else 0
    except ValueError:
        return 0
