"""The clock of the live path: milliseconds that only grow."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def monotonic_ms() -> float:
    """Milliseconds since an arbitrary moment."""
    return time.monotonic() * 1000.0
