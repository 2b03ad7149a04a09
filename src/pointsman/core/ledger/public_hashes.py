"""PublicHashes: sequence hashes of other products → our block keys, for queries by hash; kept only if switched on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pointsman.core.model.public_hash import public_seed, sequence_hashes
from pointsman.core.model.token_keys import KeySpec

_SLACK = 4096
"""Entries that may be garbage before it is cleaned, whatever its size."""


class PublicHashes:
    """Bounded by the blocks that anybody holds: `is_held` tells of a key whether one does."""

    def __init__(self, is_held: Callable[[int], bool]) -> None:
        self._is_held = is_held
        self._key_of: dict[tuple[KeySpec, int], int] = {}
        self._hash_of: dict[int, int] = {}

    def store(
        self, parent_key: int | None, keys: Sequence[int], packed: bytes, spec: KeySpec, lora_name: str | None
    ) -> None:
        """Blocks with these keys hold these tokens. Salted ones must not come here: no public hash means them."""
        parent = None if parent_key is None else self._hash_of.get(parent_key)
        if parent_key is not None and parent is None:
            return  # it came before this was switched on, or is salted
        for key, value in zip(keys, sequence_hashes(packed, spec, public_seed(lora_name), parent), strict=False):
            self._key_of[spec, value] = key
            self._hash_of[key] = value

    def keys(self, spec: KeySpec, hashes: Sequence[int]) -> list[int]:
        """Keys of the leading hashes that are known."""
        found: list[int] = []
        for value in hashes:
            key = self._key_of.get((spec, value))
            if key is None:
                break
            found.append(key)
        return found

    def clean(self, held_blocks: int) -> None:
        """Let go of what nobody holds any more, when there is enough of it."""
        if len(self._hash_of) > 1.25 * held_blocks + _SLACK:
            self._hash_of = {key: value for key, value in self._hash_of.items() if self._is_held(key)}
            self._key_of = {name: key for name, key in self._key_of.items() if key in self._hash_of}

    def __len__(self) -> int:
        return len(self._hash_of)
