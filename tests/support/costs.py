"""What work costs on this machine, to be compared with what other work costs there."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_s(work: Callable[[], object], times: int = 3) -> float:
    """Of the cheapest of so many times: what others do can only make it dearer."""
    costs = []
    for _ in range(times):
        began_s = time.process_time()
        work()
        costs.append(time.process_time() - began_s)
    return min(costs)
