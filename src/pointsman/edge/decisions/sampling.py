"""Which requests are written to the decision log, and with how much."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from pointsman.edge.decisions.record import DecisionRecord

_STATE_SEED = 1
"""Another one than that of the sample, so that the share of lines with a state is the same in it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parts of all, 0 to 1. The same for one id everywhere and at any time."""

    sample: float = 1.0
    state: float = 0.0

    def chance(self, record: DecisionRecord) -> float | None:
        """With which chance such a request is written; None: this one is not.

        Failures and missed promises are always written: they are what a log is searched for.
        """
        if self.sample >= 1 or record.status == "failed" or record.missed():
            return 1.0
        return self.sample if _part(record.request.id, 0) < self.sample else None

    def with_state(self, record: DecisionRecord) -> bool:
        """Whether its line carries the state of the fleet."""
        return self.state > 0 and (self.state >= 1 or _part(record.request.id, _STATE_SEED) < self.state)


def _part(name: str, seed: int) -> float:
    """Evenly from 0 to 1, the upper end left out."""
    return (xxhash.xxh3_64_intdigest(name.encode(), seed) >> 11) / 2**53
