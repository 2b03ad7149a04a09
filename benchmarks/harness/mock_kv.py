"""KV events of the mock engines: what they hold at the start, what each request adds, what a check expects.

They pose as vLLM with `--kv-events-config`. Prompts are tokenized here only at the start and for requests that do not
stream; a streamed one adds as many blocks as it would, with tokens made up, so that the harness stays cheap.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.prompts import chat_bodies
from pointsman.core.engine_model.events import BlockRemoved, BlockStored, KvEvent
from pointsman.core.model.token_keys import KeySpec, token_block_keys
from pointsman.edge.engines.openai_server.event_publisher import EventPublisher, EventSettings
from pointsman.edge.prompts.encoder import PromptEncoder
from pointsman.edge.prompts.local_prompts import EncodedPrompt, load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.wire.openai import parse_chat

BLOCK_TOKENS = 16
HOLDERS = 2
"""Engines that hold a shared beginning at the start."""
STEP_S = 0.005
"""Events of one step of an engine travel together."""
_MADE_UP_BLOCKS = 8_000
"""Blocks of finished requests that an engine keeps; the oldest are evicted."""
_FIRST_MADE_UP_HASH = 1 << 62
_SPEC = KeySpec(BLOCK_TOKENS)


class Beginnings(msgspec.Struct, frozen=True, kw_only=True):
    """The shared beginnings of a load run, which the engines hold before it starts: fields as in LoadSpec."""

    groups: int = 64
    prefix_words: int = 52
    tail_words: int = 8
    history_messages: int = 0
    seed: int = 1


class MockTokenizer:
    """Token ids of chats, as the front end has to find them."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._encoder = PromptEncoder()

    async def load(self, directory: Path) -> None:
        """Read the files of a model directory."""
        self._encoder.register(self._model, await load_local_prompts(TokenizerFiles(directory, "given")))

    async def tokens(self, body: bytes) -> bytes:
        """Packed token ids of a chat request's prompt."""
        prompt = await self._encoder.encode(self._model, parse_chat(body))
        if not isinstance(prompt, EncodedPrompt):
            raise TypeError(f"the mock can't tokenize this chat: {prompt}")
        return prompt.tokens

    async def shared_beginnings(self, wanted: Beginnings) -> list[bytes]:
        """The full blocks that all prompts of one group have in common, group by group."""
        fields = msgspec.structs.asdict(wanted)
        bodies = chat_bodies(model=self._model, max_tokens=1, count=2 * wanted.groups, **fields)
        prompts = [await self.tokens(body) for body in bodies]
        return [_common_blocks(prompts[i], prompts[i + wanted.groups]) for i in range(wanted.groups)]

    def close(self) -> None:
        """End its threads."""
        self._encoder.close()


def _common_blocks(one: bytes, other: bytes) -> bytes:
    width = 4 * BLOCK_TOKENS
    size = 0
    while size + width <= min(len(one), len(other)) and one[size : size + width] == other[size : size + width]:
        size += width
    return one[:size]


class MockKvCache:
    """What one mock engine says of its KV cache."""

    def __init__(self) -> None:
        self._publisher = EventPublisher(EventSettings("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"))
        self._held: set[int] = set()
        self._made_up = itertools.count(_FIRST_MADE_UP_HASH)
        self._evictable: deque[int] = deque()
        self._pending: list[KvEvent] = []

    def open(self) -> None:
        """Open the sockets."""
        self._publisher.open()

    def close(self) -> None:
        """Close the sockets."""
        self._publisher.close()

    @property
    def sources(self) -> dict[str, dict[str, object]]:
        """The answer of `/kv_event_sources`."""
        publisher = self._publisher
        rank = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": ""}
        return {"0": rank | {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}}

    def store(self, packed: bytes) -> None:
        """A prompt was computed: its full blocks are held and announced, those that are new."""
        keys = token_block_keys(packed, _SPEC).keys
        known = next((i for i, key in enumerate(keys) if key not in self._held), len(keys))
        new = keys[known:]
        if new:
            self._held.update(new)
            tokens = memoryview(packed).cast("I")[known * BLOCK_TOKENS : len(keys) * BLOCK_TOKENS].tolist()
            parent = keys[known - 1] if known else None
            self._publisher.publish([BlockStored(new, parent, tuple(tokens), BLOCK_TOKENS)])

    def computed(self, output_tokens: int) -> None:
        """A streamed request ended: a block of its prompt was new, and its answer filled some."""
        if not self._pending:
            asyncio.get_running_loop().call_later(STEP_S, self._end_step)
        count = 1 + output_tokens // BLOCK_TOKENS
        parent = None
        for block in itertools.islice(self._made_up, count):
            self._pending.append(BlockStored((block,), parent, (block & 0xFFFFFF,) * BLOCK_TOKENS, BLOCK_TOKENS))
            self._evictable.append(block)
            parent = block
        if len(self._evictable) > _MADE_UP_BLOCKS:
            self._pending.append(BlockRemoved(tuple(self._evictable.popleft() for _ in range(count))))

    def _end_step(self) -> None:
        self._publisher.publish(self._pending)
        self._pending = []


async def hold(caches: Sequence[MockKvCache], tokenizer: MockTokenizer, wanted: Sequence[Beginnings]) -> None:
    """Give each beginning to some of the engines, all of them as many."""
    for kind in wanted:
        for group, tokens in enumerate(await tokenizer.shared_beginnings(kind)):
            for copy in range(min(HOLDERS, len(caches))):
                caches[(group + copy) % len(caches)].store(tokens)
