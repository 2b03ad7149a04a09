"""Read by every Python process of an engine at its start: to yield is to sleep for a moment.

vLLM's processes wait for each other in loops of `sched_yield`. Where engines and tests share two cores this starves
everybody, the kernel's own workers included: an answer that takes 3.5 s takes 40 to 80 s, and now and then a process
gets no time for longer than any time limit.
"""

from __future__ import annotations

import os
import time

_MOMENT_S = 50e-6


def _sleep_a_moment() -> None:
    time.sleep(_MOMENT_S)


os.sched_yield = _sleep_a_moment
