"""FailedAttempt: a worker that did not answer a request, or not to its end."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import WorkerId
from pointsman.edge.serving.relay import Ending, Relay

NOT_REACHED = frozenset((Fault.UNREACHABLE, Fault.CONNECT_LATE))


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt of one request."""

    worker: WorkerId
    reason: str
    fault: Fault | None
    relay: Relay | None
    """None: there was no connection."""
    ending: Ending = Ending.NOTHING_SENT

    @property
    def error(self) -> PointsmanError | None:
        """What went wrong on the connection, if that is what did."""
        return None if self.relay is None else self.relay.error
