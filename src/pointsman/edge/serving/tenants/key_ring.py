"""KeyRing: the keys that are taken, by their hashes.

SHA-256, not scrypt or the like: those make guessing passwords dear, and take milliseconds each time. A key from
`pointsman keys make` has 256 random bits, which nobody guesses at any price, and is checked with every request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from pointsman.core.limits.limits import NO_LIMITS, Limits
from pointsman.edge.configuration.keys_file import ApiKey
from pointsman.edge.serving.tenants.principal import Principal

_PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class RingKey:
    """One key; its own value is known to nobody here."""

    digest: bytes
    principal: Principal
    expires_s: float | None
    """Seconds since 1970."""


class KeyRing:
    """Never changed: another file gives another ring."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)
        self._limits = {key.id: key.limits.limits() for key in self.keys if key.limits is not None}
        by_prefix: dict[bytes, list[RingKey]] = {}
        for key in self.keys:
            expires_s = None if key.expires is None else key.expires.epoch_s
            ring_key = RingKey(bytes(key.sha256), Principal.of_key(key.tenant, key.id), expires_s)
            by_prefix.setdefault(ring_key.digest[:_PREFIX_BYTES], []).append(ring_key)
        self._by_prefix = {prefix: tuple(found) for prefix, found in by_prefix.items()}

    def find(self, key: bytes) -> RingKey | None:
        """The key whose hash this one has.

        Looked up by a part of the hash, which nobody can choose without inverting it, and compared in constant time.
        """
        digest = hashlib.sha256(key).digest()
        for candidate in self._by_prefix.get(digest[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(candidate.digest, digest):
                return candidate
        return None

    def limits_of(self, key_id: str) -> Limits:
        """Those of one key."""
        return self._limits.get(key_id, NO_LIMITS)

    def expired(self, epoch_s: float) -> int:
        """How many are."""
        return sum(key.expires is not None and key.expires.epoch_s <= epoch_s for key in self.keys)
