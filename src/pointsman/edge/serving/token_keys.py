"""TokenKeys: block keys of a request's tokens, for each way in which engines of its model cut blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import BlockKeys
from pointsman.core.model.chain_cache import ChainCache
from pointsman.core.model.token_keys import NO_EXTRAS, KeySpec, salt_extra
from pointsman.edge.prompts.encoder import NotEncoded, Pending, PromptEncoder
from pointsman.edge.serving.bodies import BodyFacts

INLINE_BLOCKS = 4096
"""More blocks than these are keyed in a thread: on the event loop they would take 1 ms, 0.25 µs each."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Keys of a prompt, and its length where all of it is known."""

    blocks: Mapping[KeySpec, BlockKeys]
    prompt_tokens: int | None


NOT_TOKENIZED = TokenizedPrompt({}, None)


class TokenKeys:
    """Tokenizes only where an engine of the model sends KV events: elsewhere nothing could be looked up."""

    def __init__(
        self,
        ledger: Ledger,
        encoder: PromptEncoder,
        is_adapter: Callable[[str], bool],
        inline_blocks: int = INLINE_BLOCKS,
    ) -> None:
        self._ledger = ledger
        self._encoder = encoder
        self._is_adapter = is_adapter
        self._inline_blocks = inline_blocks
        self._chains = ChainCache()
        self._long_chains = ChainCache()
        """Of prompts that are keyed in threads, under the lock: a cache belongs to one thread at a time."""
        self._long_chains_lock = threading.Lock()

    async def of(self, facts: BodyFacts) -> TokenizedPrompt:
        """Waits only for a thread, where much is new or the prompt is very long, or for an engine that tokenizes."""
        specs = self._ledger.key_specs(facts.model) if facts.parsed is not None else frozenset()
        if not specs or facts.parsed is None or self._encoder.source(facts.model) is None:
            return NOT_TOKENIZED
        encoded = self._encoder.encode_now(facts.model, facts.parsed)
        if isinstance(encoded, Pending):
            encoded = await encoded.outcome()
        if isinstance(encoded, NotEncoded):
            return NOT_TOKENIZED
        adapter = facts.model if self._is_adapter(facts.model) else None
        extras = {0: salt_extra(facts.cache_salt)} if facts.cache_salt else NO_EXTRAS
        if sum(spec.full_blocks(encoded.count) for spec in specs) <= self._inline_blocks:
            blocks = {spec: self._chains.keys(encoded.tokens, spec, adapter, extras) for spec in specs}
        else:
            job = partial(self._long, encoded.tokens, specs, adapter, extras)
            keyed = await self._encoder.beside(job, len(encoded.tokens))
            if isinstance(keyed, NotEncoded):
                return NOT_TOKENIZED
            blocks = keyed
        return TokenizedPrompt(blocks, encoded.count if encoded.complete else None)

    def _long(
        self, tokens: bytes, specs: frozenset[KeySpec], adapter: str | None, extras: Mapping[int, bytes]
    ) -> dict[KeySpec, BlockKeys]:
        """In a thread."""
        with self._long_chains_lock:
            return {spec: self._long_chains.keys(tokens, spec, adapter, extras) for spec in specs}
