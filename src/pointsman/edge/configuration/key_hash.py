"""KeyHash: what is kept of an API key."""

from __future__ import annotations

import hashlib
import re
from typing import ClassVar

_FORM = re.compile(r"[0-9a-fA-F]{64}")


class KeyHash(bytes):
    """SHA-256 of a key, 32 bytes. Messages never repeat what was given instead: it may be the key itself."""

    __slots__ = ()

    expected: ClassVar[str] = "64 hexadecimal digits, the SHA-256 of the key (`pointsman keys make` gives them)"

    @classmethod
    def parse(cls, value: object) -> KeyHash:
        """Read hexadecimal digits. Raises ValueError."""
        if not isinstance(value, str) or not _FORM.fullmatch(value.strip()):
            raise ValueError(cls.expected)
        return cls(bytes.fromhex(value.strip()))

    @classmethod
    def of(cls, key: bytes) -> KeyHash:
        """The hash of a key."""
        return cls(hashlib.sha256(key).digest())

    def __repr__(self) -> str:
        return "<hash of a key>"
