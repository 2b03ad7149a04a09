"""What is counted of keys and limits."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from pointsman.edge.telemetry.bounded import OTHERS, BoundedCounter


class KeyFault(enum.StrEnum):
    """Why a request is not let in, as metrics and the log say it; clients are told less."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


@dataclass(slots=True)
class TenantCounts:
    """Of one front end."""

    key_faults: Counter[KeyFault] = field(default_factory=Counter)
    requests: BoundedCounter[str] = field(default_factory=lambda: BoundedCounter(OTHERS))
    """Let in, by tenant."""
    keys: BoundedCounter[str] = field(default_factory=lambda: BoundedCounter(OTHERS))
    """Let in, by id of the key."""
    tokens: BoundedCounter[str] = field(default_factory=lambda: BoundedCounter(OTHERS))
    """Charged, by tenant."""
    limited: BoundedCounter[tuple[str, str]] = field(default_factory=lambda: BoundedCounter((OTHERS, OTHERS), 150))
    """(tenant, limit): refused for it."""
    reloads: Counter[str] = field(default_factory=Counter)
    """Of the file of keys: read, broken."""
    told: int = 0
    """Messages on limits to other replicas."""
    unreadable: int = 0
    """Messages of theirs that could not be read."""
