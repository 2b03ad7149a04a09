"""Retries: whether a request whose engine failed it before its client got a byte may go to another one."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pointsman.core.model.fault import Fault

NOT_TAKEN = frozenset((Fault.UNREACHABLE, Fault.CONNECT_LATE, Fault.OVERLOADED))
"""Faults of engines that never began with a request."""
SURVIVED = NOT_TAKEN | {Fault.SERVER_ERROR}
"""Faults after which the engine is still there and says so: however many it has, a request can be kept to `retries`."""
MOST_RESENDS = 1
"""Of a request with which an engine was lost: it may be what they die of, and must not be handed on for ever."""


class NoRetry(enum.Enum):
    """Why a request is not sent again; as metrics name it, and in words."""

    NOT_THE_ENGINE = "not_the_engine"
    ACCEPTED = "accepted"
    LIMIT = "limit"
    RESENT = "resent"
    BUDGET = "budget"
    NOBODY = "nobody"

    @property
    def text(self) -> str:
        """For the client."""
        return _TEXTS[self]


_TEXTS = {
    NoRetry.NOT_THE_ENGINE: "another engine would do no better",
    NoRetry.ACCEPTED: "it was not sent to another engine, since it was accepted and may still be computed",
    NoRetry.LIMIT: "it was sent to as many engines as failover.retries allows",
    NoRetry.RESENT: "it failed at another engine too and is not handed on: it may be what they fail of",
    NoRetry.BUDGET: "it was not sent to another engine, since too many requests are (failover.retry_budget)",
    NoRetry.NOBODY: "no other engine can take it",
}


@dataclass(slots=True)
class Tries:
    """What one request has used up."""

    most: int
    """Retries that it may have."""
    retries: int = 0
    resends: int = 0
    """Of those, after an engine was lost with it."""

    def refusal(self, fault: Fault | None, *, budget_left: bool) -> NoRetry | None:
        """Why it may not be sent again after this fault; None: it may."""
        if fault is None:
            return NoRetry.NOT_THE_ENGINE
        if fault is Fault.LATE:
            return NoRetry.ACCEPTED
        if self.retries >= self.most:
            return NoRetry.LIMIT
        if fault not in SURVIVED and self.resends >= MOST_RESENDS:
            return NoRetry.RESENT
        return None if budget_left else NoRetry.BUDGET

    def used(self, fault: Fault) -> None:
        """It is sent again."""
        self.retries += 1
        self.resends += fault not in SURVIVED
