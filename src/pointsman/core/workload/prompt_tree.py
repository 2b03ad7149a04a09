"""Block ids of made prompts: equal beginnings get equal ids, different ones different ids."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest

MOST_PROMPT_TOKENS = 100_000_000
"""Of one prompt. Longer ones are mistakes, and their ids would fill the memory."""


class PromptNode:
    """A beginning of prompts: pieces of text one after the other. Raises TraceError where it gets absurdly long."""

    __slots__ = ("_children", "_tree", "block_ids", "partial_id", "tokens")

    def __init__(self, tree: PromptTree, tokens: int, block_ids: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.block_ids = block_ids
        """Of its full blocks, from the first on."""
        self.partial_id: int | None = None
        """Of its last block that is not full, once a prompt ended here."""
        self._tree = tree
        self._children: dict[tuple[Hashable, int], PromptNode] = {}

    def then(self, piece: Hashable, tokens: int) -> PromptNode:
        """The beginning that goes on with a piece of that many tokens; the same piece gives the same object."""
        child = self._children.get((piece, tokens))
        if child is None:
            total = self.tokens + tokens
            if total > MOST_PROMPT_TOKENS:
                raise TraceError(f"a prompt of {total:,} tokens is not made; at most {MOST_PROMPT_TOKENS:,} are")
            fresh = total // self._tree.block_tokens - len(self.block_ids)
            child = PromptNode(self._tree, total, self.block_ids + self._tree.fresh_ids(fresh))
            self._children[piece, tokens] = child
        return child

    def prompt_ids(self) -> tuple[int, ...]:
        """Ids of a prompt that ends here, of a last block that is not full too."""
        if self.tokens % self._tree.block_tokens == 0:
            return self.block_ids
        if self.partial_id is None:
            (self.partial_id,) = self._tree.fresh_ids(1)
        return (*self.block_ids, self.partial_id)

    def request(
        self,
        at_ms: float,
        output_tokens: int,
        *,
        answer: PromptNode | None = None,
        session: str | None = None,
        after: int | None = None,
        gap_ms: float = 0.0,
    ) -> TraceRequest:
        """A request with this prompt; `answer` is the beginning that its answer leads to, if any prompt repeats it."""
        ids = () if answer is None else answer.block_ids[len(self.block_ids) :]
        return TraceRequest(at_ms, self.tokens, output_tokens, self.prompt_ids(), ids, session, after, gap_ms)


class PromptTree:
    """The root of all beginnings of one trace. Raises TraceError for blocks of nothing."""

    def __init__(self, block_tokens: int) -> None:
        if block_tokens < 1:
            raise TraceError(f"blocks of {block_tokens} tokens can't be")
        self.block_tokens = block_tokens
        self._ids = count()
        self.root = PromptNode(self, 0, ())

    def fresh_ids(self, number: int) -> tuple[int, ...]:
        """Ids that nobody has yet."""
        return tuple(next(self._ids) for _ in range(number))
