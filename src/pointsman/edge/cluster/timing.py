"""ProbeTiming: how often an engine is asked, and how long an answer may take."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """All in seconds."""

    interval_s: float = 5.0
    """Between two probes of an engine (`control-plane.heartbeat_interval`)."""
    identify_interval_s: float = 60.0
    """After that long an engine is asked again what it is: models may have been loaded or unloaded."""
    first_retry_s: float = 0.5
    """After a first failure; doubles up to `interval_s`."""
    jitter: float = 0.1
    """Share by which a pause is made longer or shorter, so that many engines are not asked at the same moment."""

    @property
    def timeout_s(self) -> float:
        """For one call: shorter than the interval, so that probes of one engine never pile up."""
        return 0.8 * self.interval_s

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Until the next probe, after so many failures in a row."""
        pause_s = self.interval_s
        if failures > 0:
            pause_s = min(pause_s, self.first_retry_s * 2.0 ** min(failures - 1, 30))
        return pause_s * (1.0 + self.jitter * (2.0 * rng.random() - 1.0))
