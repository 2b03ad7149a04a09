"""EngineStatus: what is known of an engine that was configured, for people."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pointsman.edge.engines.facts import EngineFacts

NOT_ASKED_YET = "not asked yet"
"""Reason of an engine at which nobody has looked."""


class EngineState(enum.StrEnum):
    """How an engine's last probe went."""

    LOOKING = "looking"
    """Never identified so far: nothing can be sent there."""
    READY = "ready"
    NOT_READY = "not ready"
    LOST = "lost"
    """Answered once, and does not now."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """State of one engine, also of one that never answered and so is no worker yet."""

    name: str
    url: str
    state: EngineState
    reason: str
    since_ms: float
    facts: EngineFacts | None
    load_unknown: str | None = None
    """Why its load is not known, where it should be."""
    gpu_unknown: str | None = None
    """Why it is not known how busy its GPUs are, where it should be."""
