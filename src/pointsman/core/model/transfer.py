"""What operators say of moving KV between engines."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class TransferMode(enum.StrEnum):
    """When KV is moved at all."""

    OFF = "off"
    """Never: workers for prefill get nothing, unless nobody else is there (then requests are refused)."""
    AUTO = "auto"
    """Where that is predicted to take less time."""
    ALWAYS = "always"
    """Prefill and decode apart wherever two workers can."""


@dataclass(frozen=True, slots=True)
class TransferRules:
    """Part of the view, so that a recorded one decides again as it did."""

    mode: TransferMode = TransferMode.AUTO
    most_bytes: int = 0
    """Larger caches are not moved; 0: no limit."""
    fallback_to_local: bool = True
    """What could not be moved is computed where the request is answered; else the request fails."""


USUAL_RULES = TransferRules()
