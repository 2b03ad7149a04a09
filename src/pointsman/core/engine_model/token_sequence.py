"""Sequences with contents: real token ids, blocks hashed by what is in them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as TokenIds

from pointsman.core.engine_model import token_source
from pointsman.core.engine_model.block_hash import block_hash
from pointsman.core.engine_model.events import BlockStored
from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import Sequence

_UNBOUNDED = 1 << 62


class TokenSequence(Sequence):
    """One answer to a prompt of token ids."""

    __slots__ = ("_digest", "_known", "_lora_name", "_salt", "seed", "tokens")

    writes_tokens = True

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        tokens: array[int],
        hashes: list[int],
        seed: int,
        digest: int,
        target_length: int,
    ) -> None:
        super().__init__(request, index, len(tokens), target_length, hashes, request.stage)
        self.tokens = tokens
        """Prompt and what was generated so far."""
        self.seed = seed
        self._known = hashes
        self._digest = digest
        self._lora_name = request.lora_name
        self._salt = request.cache_salt

    @property
    def lora_name(self) -> str | None:
        """Its adapter."""
        return self._lora_name

    @property
    def hashable_blocks(self) -> int:
        """All of them."""
        return _UNBOUNDED

    def know_hashes(self, blocks: int, block_size: int) -> None:
        """Hash blocks that generated tokens filled."""
        hashes = self._known
        while len(hashes) < blocks:
            start = len(hashes) * block_size
            block = self.tokens[start : start + block_size]
            hashes.append(block_hash(block, hashes[-1] if hashes else self.seed))

    def stored(self, first: int, last: int, block_size: int) -> BlockStored:
        """With the tokens of the blocks."""
        hashes = self._known
        return BlockStored(
            block_hashes=tuple(hashes[first:last]),
            parent_block_hash=hashes[first - 1] if first else None,
            token_ids=tuple(self.tokens[first * block_size : last * block_size]),
            block_size=block_size,
            lora_name=self._lora_name,
            cache_salt=None if first else self._salt,
        )

    def write(self, output_ids: TokenIds[int]) -> int:
        """The next token follows from all before it."""
        tokens = self.tokens
        position = len(tokens)
        token = output_ids[token_source.choose(self._digest, position, len(output_ids))]
        tokens.append(token)
        self._digest = token_source.extend_digest(self._digest, token, position)
        return token
