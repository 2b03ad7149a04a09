"""Evidence: whether enough happened in runs to say anything by their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pointsman.app.placements.simulation.demand import Demand
from pointsman.app.placements.simulation.outcome import Outcome

ENOUGH_GANGS = 100
"""Of each run: below that, the 99th percentile of waits is just the longest one."""


def too_little(outcomes: Sequence[Outcome], demand: Demand, cluster_gpus: int) -> str | None:
    """For people: that no gang came, or few, and what would bring more; None if enough came in every run."""
    fewest = min(outcome.gangs for outcome in outcomes)
    if fewest >= ENOUGH_GANGS:
        return None
    per_hour = demand.gangs_per_hour(cluster_gpus)
    every = f"{1 / per_hour:,.1f} h" if per_hour <= 1 else f"{60 / per_hour:,.1f} min"
    wanted_h = math.ceil(ENOUGH_GANGS / per_hour)
    advice = f"at this load one comes every {every} on average, so {wanted_h:,} h would bring {ENOUGH_GANGS}"
    most = max(outcome.gangs for outcome in outcomes)
    if not most:
        return f"no gang came in {demand.hours:,g} h, so nothing was seen: {advice}"
    count = f"{fewest}" if len(outcomes) == 1 else f"{fewest} to {most}" if fewest < most else f"{most}"
    came = f"only {count} gang{'s' * (most != 1)} came" + (" in each run" if len(outcomes) > 1 else "")
    return f"{came}, so shares and percentiles say little: {advice}"
