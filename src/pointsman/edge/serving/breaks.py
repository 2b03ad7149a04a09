"""How an engine's answer breaks off, beside what its connection says: as errors, and as faults of its worker."""

from __future__ import annotations

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.edge.wire.http1_client import (
    OwnShortageError,
    UpstreamClosed,
    UpstreamConnectError,
    UpstreamProtocolError,
)

OVERLOADED = frozenset((429, 503, 529))
"""Statuses of an engine that takes nothing now."""
_FAILED_INSIDE = frozenset((500, 502, 507, 508))
KEY_REFUSED = frozenset((401, 407))
"""Statuses that are about our own key at the engine, since the client's never gets there: nothing that it can mend."""
HELD_BACK = OVERLOADED | _FAILED_INSIDE | KEY_REFUSED
"""Statuses that the client does not get while another engine may answer. 504 is none: it may still be computing."""


class EngineTimeoutError(PointsmanError):
    """The engine kept a request waiting beyond a limit."""


class DeadlineError(EngineTimeoutError):
    """The request's own time is over."""


class ErrorEventError(PointsmanError):
    """The engine's stream said that it failed, or was aborted there.

    Args:
        said: its own words, which are for the client and no log.
    """

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class CutShortError(PointsmanError):
    """The engine's stream ended properly, but before the answer did."""


class DivergedError(PointsmanError):
    """Another engine was to say again what the client has already, and said something else."""


class NotContinuedError(PointsmanError):
    """Another engine would not go on with a stream.

    Args:
        status: its answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class InterruptedHereError(PointsmanError):
    """It was taken away from its worker.

    Args:
        fault: of the worker; None: it drains.
        goes_on: it may be computed elsewhere.
    """

    def __init__(self, message: str, fault: Fault | None, *, goes_on: bool) -> None:
        super().__init__(message)
        self.fault = fault
        self.goes_on = goes_on


class NotMovedError(PointsmanError):
    """KV of another engine will not come: the one that answers has to compute the prompt itself, and did not fail.

    Args:
        label: what metrics call the reason.
        fault: of the engine that has the KV; None: it did not fail either.
        no_kv: both are well as far as one knows, and the KV was of no use.
    """

    def __init__(self, message: str, label: str, fault: Fault | None = None, *, no_kv: bool = False) -> None:
        super().__init__(message)
        self.label = label
        self.fault = fault
        self.no_kv = no_kv


def fault_of(error: PointsmanError) -> Fault | None:
    """In which way the worker failed; None: it did not."""
    if isinstance(error, DeadlineError | DivergedError | OwnShortageError):
        return None
    if isinstance(error, NotContinuedError):
        return fault_of_status(error.status)
    for kind, fault in _FAULTS:
        if isinstance(error, kind):
            return fault
    if isinstance(error, UpstreamConnectError):
        return Fault.UNREACHABLE if _refused(error) else Fault.CONNECT_LATE
    return error.fault if isinstance(error, InterruptedHereError) else None


def fault_of_status(status: int) -> Fault | None:
    """The same of an answer by its status."""
    if status in OVERLOADED:
        return Fault.OVERLOADED
    return Fault.SERVER_ERROR if status >= 500 or status in KEY_REFUSED else None


_FAULTS: tuple[tuple[type[PointsmanError], Fault], ...] = (
    (EngineTimeoutError, Fault.LATE),
    (ErrorEventError, Fault.ERROR_EVENT),
    (CutShortError, Fault.MALFORMED),
    (UpstreamProtocolError, Fault.MALFORMED),
    (UpstreamClosed, Fault.LOST),
)


def _refused(error: UpstreamConnectError) -> bool:
    """Nobody listens there. A connection that took too long proves nothing: the engine may be busy."""
    return isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, TimeoutError)
