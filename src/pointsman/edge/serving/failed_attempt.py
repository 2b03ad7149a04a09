"""FailedAttempt: a worker that did not answer a request, or not to its end."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import WorkerId
from pointsman.edge.serving.attempt import Attempt, Ending
from pointsman.edge.serving.retries import NOT_TAKEN

NOT_REACHED = frozenset((Fault.UNREACHABLE, Fault.CONNECT_LATE))


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt of one request."""

    worker: WorkerId
    reason: str
    fault: Fault | None
    relay: Attempt | None
    """None: there was no connection."""
    ending: Ending = Ending.NOTHING_SENT
    only_asked: bool = False
    """It failed a question about the request, which it never got."""
    trouble: PointsmanError | None = None
    """What went wrong before there was a connection to speak of."""
    of_other: bool = False
    """`worker` was to compute the prompt for the one that answers, which serves halves only and did not fail."""

    @property
    def taken(self) -> bool:
        """It may have been the request that it failed of."""
        return not self.only_asked and self.fault not in NOT_TAKEN

    @property
    def error(self) -> PointsmanError | None:
        """What went wrong on the connection, if that is what did."""
        return self.trouble if self.relay is None else self.relay.error
