"""ExactRouting: what exact KV routing needs beside the ledger, put together and stopped as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pointsman.core.ledger.events import Event
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.engine_watch import FactsListener
from pointsman.edge.cluster.kv_feeds import KvFeeds
from pointsman.edge.prompts.encoder import PromptEncoder
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.facts_listeners import FactsListeners
from pointsman.edge.serving.kv_check import KvCheck
from pointsman.edge.serving.prompt_sources import PromptSources
from pointsman.edge.serving.token_keys import TokenKeys
from pointsman.edge.wire.trust import Trusts


class ExactRouting:
    """Feeds of KV events, tokenizers, checks of both, and the keys of requests. `listener` is for the prober."""

    def __init__(
        self,
        ledger: Ledger,
        emit: Callable[[Event], None],
        clock: Clock,
        *,
        places: TokenizerPlaces,
        tokenizers: Mapping[str, str],
        tokenize: bool,
        trusts: Trusts,
    ) -> None:
        self._ledger = ledger
        self._orphans: dict[WorkerId, int] = {}
        self.encoder = PromptEncoder()
        self.feeds = KvFeeds(emit, clock)
        self._calls = EngineCalls(trusts)
        self._sources = PromptSources(self.encoder, self._calls, places, tokenizers)
        self._check = KvCheck(ledger, self.encoder, self._calls, emit, clock)
        self.keys = TokenKeys(ledger, self.encoder, self._sources.is_adapter)
        listeners: tuple[FactsListener, ...] = (self.feeds, self._sources, self._check) if tokenize else ()
        self.listener = FactsListeners(*listeners)

    def look_after(self) -> None:
        """Blocks without a known parent mean that the feed missed something: it is asked to verify itself."""
        for worker in self._ledger.snapshot().workers:
            orphans = worker.kv.orphan_blocks
            if orphans > self._orphans.get(worker.id, 0):
                self.feeds.doubted(worker.id)
            self._orphans[worker.id] = orphans

    async def close(self) -> None:
        """After the prober."""
        await self._check.close()
        await self._sources.close()
        await self.feeds.close()
        await self._calls.close()
        self.encoder.close()
