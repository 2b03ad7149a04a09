"""Split: which requests a new policy decides. By a hash, so that all front ends agree without talking."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import xxhash

from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request

BUCKETS = 64
"""Units are put into so many groups; how much these differ says how far an arm's mean can be relied on."""


class Arm(enum.StrEnum):
    """Whose policy decides a request."""

    BASE = "base"
    TRIAL = "trial"


class By(enum.StrEnum):
    """What goes to one arm as a whole."""

    SESSION = "session"
    """Requests with the same tenant and route key; one without a route key is a session of its own."""
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs."""

    arm: Arm
    bucket: int
    """0 to BUCKETS − 1, the same for all requests of one unit and independent of the arm."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which units the policy `trial` decides: those whose hash is below the share.

    A wider share keeps all units of the narrower one and adds others. Raises PolicyError for a share outside 0 to 1.
    """

    trial: str
    """Name of the policy; part of the hash, so that not always the same users are the first to try things."""
    share: float
    by: By

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise PolicyError(f"a share is from 0 to 1, not {self.share}")

    def place(self, request: Request) -> Place:
        """Of one request; the same wherever and whenever it is asked."""
        if self.by is By.SESSION and request.route_key is not None:
            unit = f"{self.trial}\0{request.tenant or ''}\0{request.route_key}"
        else:
            unit = f"{self.trial}\0\0\0{request.id}"
        hashed = xxhash.xxh3_64_intdigest(unit.encode("utf-8", "surrogatepass"))
        # The high bits choose the arm, the low ones the bucket: neither tells anything of the other.
        inside = (hashed >> 11) < self.share * 2.0**53
        return Place(Arm.TRIAL if inside else Arm.BASE, hashed % BUCKETS)
