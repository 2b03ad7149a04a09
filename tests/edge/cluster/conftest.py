"""A stand-in for the ledger: what one worker's KV events make of an exact index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
import uvloop

from pointsman.core.ledger.events import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent, KvFeedChanged, KvFeedState
from pointsman.core.ledger.prefix_index import PrefixIndex
from pointsman.core.model.token_keys import GPU, BlockHash, chain, token_seed
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from support import waiting

ANY_PORT = "tcp://127.0.0.1:*"


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """ZMQ's descriptors are watched by the event loop itself, so feeds are tested on both kinds."""
    asyncios = {"asyncio": asyncio.new_event_loop}
    return {**asyncios, "uvloop": uvloop.new_event_loop} if item.path.stem == "test_kv_feed" else asyncios


@dataclass
class Holder:
    """One seat in an index of its own."""

    index: PrefixIndex = field(default_factory=PrefixIndex)
    changes: list[KvFeedChanged] = field(default_factory=list)
    seen: set[BlockHash] = field(default_factory=set)
    orphans: int = 0
    largest: int = 0
    """Blocks of the largest event."""
    seat: int = -1
    process: int = 0
    """For tests that count the processes that an engine was."""

    def __post_init__(self) -> None:
        self.seat = self.index.take_seat()

    def emit(self, event: KvEvent) -> None:
        if isinstance(event, KvFeedChanged):
            self.changes.append(event)
        elif isinstance(event, BlocksStored):
            self._store(event)
        elif isinstance(event, BlocksRemoved):
            self.index.remove(self.seat, event.medium, event.hashes)
        else:
            assert isinstance(event, BlocksCleared)
            self.index.retire(self.seat)
            self.seat = self.index.take_seat()

    def _store(self, event: BlocksStored) -> None:
        known = None if event.parent is None else self.index.key_of(self.seat, event.parent)
        if event.parent is not None and known is None:
            self.orphans += 1
            return
        seed = token_seed(event.spec, event.lora_name) if known is None else known
        self.index.store(self.seat, event.medium, event.hashes, chain(event.tokens, event.spec, seed, event.extras))
        self.seen.update(event.hashes)
        self.largest = max(self.largest, len(event.hashes))

    @property
    def state(self) -> KvFeedState | None:
        return self.changes[-1].state if self.changes else None

    @property
    def states(self) -> list[KvFeedState]:
        return [change.state for change in self.changes]

    @property
    def reason(self) -> str:
        return self.changes[-1].reason

    @property
    def hashes(self) -> set[BlockHash]:
        held = {block_hash for block_hash in self.seen if self.index.key_of(self.seat, block_hash) is not None}
        assert self.index.count(self.seat, GPU) == len(held)
        return held


@pytest.fixture(scope="session")
def make_holder() -> Callable[[], Holder]:
    return Holder


@pytest.fixture
def holder() -> Holder:
    return Holder()


@pytest.fixture
async def start_sim() -> AsyncIterator[Callable[..., Awaitable[SimServer]]]:
    """`await start_sim(…)`: a simulated engine with KV events and a replay service, closed after the test."""
    async with AsyncExitStack() as stack:

        async def start(**overrides: object) -> SimServer:
            values: dict[str, object] = {
                "model": "m",
                "num_blocks": 64,
                "max_model_len": 128,
                "block_size": 4,
                "kv_events": ANY_PORT,
                "replay": ANY_PORT,
                "seed": 3,
            }
            server = SimServer(SimSettings(**{**values, **overrides}))  # type: ignore[arg-type]
            await server.start()
            stack.push_async_callback(server.close)
            return server

        yield start


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Turns the event loop until something holds."""
    return waiting.eventually
