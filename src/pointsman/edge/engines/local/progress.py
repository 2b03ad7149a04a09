"""How work that takes time says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One message; with both numbers it is a share."""

    text: str
    done_bytes: int | None = None
    total_bytes: int | None = None


ProgressCallback = Callable[[Progress], None]


def no_progress(progress: Progress) -> None:
    """For callers that show nothing."""
