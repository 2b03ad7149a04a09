"""What a section says when a value is fine alone but not together with others."""

from __future__ import annotations


class KeyConflictError(ValueError):
    """Raised by a section's `__post_init__`; the loader adds the place. `key` may be a path: `nodes[1].name`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message
