"""Fault: in which way a worker failed a request. What may be tried again, and what speaks against it, differ."""

from __future__ import annotations

import enum


class Fault(enum.StrEnum):
    """How an attempt failed that the worker is to blame for, or may be."""

    UNREACHABLE = "unreachable"
    """Nobody listens there: the request was not taken, and there is no doubt about the worker."""
    CONNECT_LATE = "connect_late"
    """No connection in time: not taken, but the engine may just be busy."""
    LOST = "lost"
    """The connection ended before the answer did: the process, its host or the way there is gone."""
    OVERLOADED = "overloaded"
    """It said that it takes nothing now (429, 503): not taken."""
    SERVER_ERROR = "server_error"
    """It answered 5xx: taken, and failed inside."""
    ERROR_EVENT = "error_event"
    """Its stream said that it failed."""
    MALFORMED = "malformed"
    """What it answered is no HTTP, or no proper stream."""
    LATE = "late"
    """Taken, and silent beyond a limit: it may still be computing."""
