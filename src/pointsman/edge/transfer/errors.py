"""What can go wrong with a transfer."""

from __future__ import annotations

import enum

from pointsman.core.model.errors import EngineError


class Failure(enum.StrEnum):
    """Why blocks did not come, as metrics call it."""

    REFUSED = "refused"
    """The source said why: another model, block size, codec."""
    UNREACHABLE = "unreachable"
    """No connection."""
    BROKEN = "broken"
    """The connection ended in the middle, also when it was tried again; the source is gone, or its lease is."""
    TIMED_OUT = "timed out"
    """Nothing came for too long."""
    CORRUPT = "corrupt"
    """Checksums were wrong, also when the blocks were asked for again, or blocks are of another prompt."""
    LOCAL = "local"
    """Something here: no transport that both sides have."""


class TransferError(EngineError):
    """A transfer ended before its end. Blocks that were handed out before that are right and may be used."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
