"""LoRA adapters: which a worker has on its GPU, and what it costs to load one first."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

PRIOR_LOAD_MS = 100.0
"""Thought of a load before any was seen."""
_PRIOR_LOADS = 4
"""Loads that the prior counts as."""
_KEPT = 64
MOST_LOAD_MS = 60_000.0


class ResidentAdapters:
    """Adapters of one worker: used most recently, as many as fit. A reading tells who runs, not who only stays."""

    __slots__ = ("_most", "_names")

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._most: int | None = None

    def used(self, name: str) -> None:
        """A request for it was sent there: the next one finds it."""
        self._names.pop(name, None)
        self._names[name] = None
        self._drop()

    def read(self, names: Iterable[str], most: int | None) -> None:
        """The engine tells which of them requests run with, and how many fit (None: it does not say)."""
        self._most = most or self._most
        for name in sorted(names):
            self._names.pop(name, None)
            self._names[name] = None
        self._drop()

    def clear(self) -> None:
        """The process is gone."""
        self._names.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def _drop(self) -> None:
        while self._most is not None and len(self._names) > self._most:
            del self._names[next(iter(self._names))]


class AdapterLoads:
    """How much later the first token comes where the adapter had to be loaded first, learned from both sorts."""

    def __init__(self) -> None:
        self._late_ms: dict[bool, deque[float]] = {True: deque(maxlen=_KEPT), False: deque(maxlen=_KEPT)}
        self._load_ms = PRIOR_LOAD_MS

    @property
    def load_ms(self) -> float:
        """Difference of the medians, from 0 to a minute; near the prior while few were seen."""
        return self._load_ms

    def first_token(self, late_ms: float, *, missing: bool) -> None:
        """It came so much later than the prompt alone explains."""
        self._late_ms[missing].append(late_ms)
        loaded, present = self._late_ms[True], self._late_ms[False]
        seen = min(len(loaded), len(present))
        if not seen:
            return
        found_ms = statistics.median(loaded) - statistics.median(present)
        mean_ms = (seen * found_ms + _PRIOR_LOADS * PRIOR_LOAD_MS) / (seen + _PRIOR_LOADS)
        self._load_ms = min(MOST_LOAD_MS, max(0.0, mean_ms))
