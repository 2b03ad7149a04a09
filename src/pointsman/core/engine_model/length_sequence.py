"""Sequences without contents: blocks are the same where their hashes say so, all others are only counted."""

from __future__ import annotations

from pointsman.core.engine_model.events import BlockStored
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.model.stage import Stage


class LengthSequence(Sequence):
    """The answer to a request of which only lengths and hashes are known."""

    __slots__ = ()

    def __init__(self, request: LengthRequest, max_model_len: int, *, hashed: bool) -> None:
        target = min(request.prompt_tokens + request.output_tokens, max_model_len)
        if request.stage is Stage.PREFILL:
            target = request.prompt_tokens + 1
        hashes = request.block_hashes + request.answer_hashes if hashed else ()
        super().__init__(request, 0, request.prompt_tokens, target, hashes, request.stage, request.fetches)

    def stored(self, first: int, last: int, block_size: int) -> BlockStored:
        """Without tokens."""
        hashes = self.hashes
        return BlockStored(tuple(hashes[first:last]), hashes[first - 1] if first else None, (), block_size)
