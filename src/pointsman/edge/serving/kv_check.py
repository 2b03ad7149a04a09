"""KvCheck: sends an engine a prompt of known tokens and compares its KV events with what was expected.

Finds at registration what otherwise shows only as hits that never come: another tokenizer or chat template, another
block size, events that go elsewhere, a prefix cache that is off.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from pointsman.core.ledger.events import KvChecked, KvFeedState
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.snapshot import KvSnapshot
from pointsman.core.model.token_keys import GPU, token_block_keys
from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.kv_source import sends_kv_events
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.detect import adapter_of
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineCallError, EngineHttp
from pointsman.edge.prompts.encoder import NotEncoded, PromptEncoder
from pointsman.edge.prompts.local_prompts import LocalPrompts
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.tasks import OwnedTasks
from pointsman.edge.wire.openai import parse_chat

_log = logging.getLogger("pointsman.serving")

FEED_LIMIT_S = 60.0
"""How long feed and tokenizer may take to be in order before the check is given up."""
EVENTS_LIMIT_S = 5.0
_POLL_S = 0.05
_WORDS = "signal points track junction platform lever crossing timetable"
_LIKELY = ": another tokenizer or chat template; set routing.tokenizers to the directory that it loads its own from"


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _UndecidedError(Exception):
    """Nothing can be said against the engine, nor for it; says why."""


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class _Checked:
    """One engine that is being checked. It may answer from any of its ranks."""

    workers: tuple[WorkerId, ...]
    model: str
    http: EngineHttp
    facts: EngineFacts
    messages: list[dict[str, str]]


def _unique_chat(block_size_tokens: int | None) -> list[dict[str, str]]:
    """Three blocks at least that no engine has seen: of what it holds already it would announce nothing."""
    size = block_size_tokens or 16
    return [{"role": "user", "content": " ".join([secrets.token_hex(8), *[_WORDS] * (1 + 3 * size // 8)])}]


class KvCheck:
    """A FactsListener: every engine that joins with KV events is checked once, by one request for one token."""

    def __init__(
        self,
        ledger: Ledger,
        encoder: PromptEncoder,
        calls: EngineCalls,
        emit: Callable[[KvChecked], None],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._encoder = encoder
        self._calls = calls
        self._emit = emit
        self._clock = clock
        self._tasks = OwnedTasks()

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """Check what joined. A server of the kind `openai` is never asked to compute anything."""
        if facts.kind != "openai" and sends_kv_events(source, facts) and facts.models and joined:
            model = (source.models or facts.models)[0]
            messages = _unique_chat(facts.block_size_tokens)
            engine = _Checked(tuple(joined), model, self._calls.to(source), facts, messages)
            self._tasks.start(self._check(engine), f"check of the KV events of {source.name}")

    def engine_left(self, source: WorkerSource) -> None:
        """A check under way ends by itself: it finds nobody."""

    async def close(self) -> None:
        """End all checks."""
        await self._tasks.close()

    async def _check(self, engine: _Checked) -> None:
        if not await self._in_order(engine):
            return
        name = engine.workers[0].rpartition("/")[0]
        try:
            fault = await self._fault(engine)
        except (EngineCallError, _UndecidedError) as error:
            _log.warning("%s: its KV events could not be checked: %s", name, error)
            return
        views = self._views(engine)
        for worker in views:
            self._emit(KvChecked(worker, self._clock(), fault))
        if views and fault is None:
            _log.info("%s: KV events checked: its tokens and blocks are those of the router", name)
        elif views:
            _log.warning("%s: what it holds can't be looked up exactly: %s", name, fault)

    async def _in_order(self, engine: _Checked) -> bool:
        """Waits for the tokenizer and the feeds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FEED_LIMIT_S
        while loop.time() < deadline_s:
            views = self._views(engine).values()
            found = self._encoder.source(engine.model)
            if found is not None and any(view.state in _IN_ORDER for view in views):
                # An engine that is asked for each prompt agrees with itself.
                return isinstance(found, LocalPrompts)
            await asyncio.sleep(_POLL_S)
        return False

    async def _fault(self, engine: _Checked) -> str | None:
        body = {"model": engine.model, "messages": engine.messages, "max_tokens": 1, "temperature": 0}
        encoded = await self._encoder.encode(engine.model, parse_chat(msgspec.json.encode(body)))
        if isinstance(encoded, NotEncoded):
            return f"the router can't tokenize a plain chat for it: {encoded.detail}"
        answer = await engine.http.post_json("/v1/chat/completions", body, _Answer)
        told = answer.usage.prompt_tokens if answer.usage else None
        if told is not None and told != encoded.count:
            return await self._difference(engine, encoded.tokens) or (
                f"it counts {told} tokens of a chat where the router counts {encoded.count}{_LIKELY}"
            )
        if await self._announced(engine, encoded.tokens):
            return None
        return await self._why_not(engine, encoded.tokens)

    async def _announced(self, engine: _Checked, tokens: bytes) -> bool:
        """The events of the prompt's full blocks arrive."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + EVENTS_LIMIT_S
        while loop.time() < deadline_s:
            for spec in self._ledger.key_specs(engine.model):
                keys = token_block_keys(tokens, spec).keys
                held = self._ledger.held(engine.model, spec, keys)
                most = max((held.get(worker, {}).get(GPU, 0) for worker in engine.workers), default=0)
                if keys and most >= max(1, len(keys) - 1) * spec.block_size_tokens:
                    return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _why_not(self, engine: _Checked, tokens: bytes) -> str:
        difference = await self._difference(engine, tokens)
        if difference:
            return difference
        if any(view.orphan_blocks for view in self._views(engine).values()):
            raise _UndecidedError("its prompts begin with blocks that it held before anybody listened")
        views = [view for view in self._views(engine).values() if any(view.blocks.values())]
        if not views:
            return "no event came of a prompt that it computed: its prefix cache may be off, or its events go elsewhere"
        said, seen = engine.facts.block_size_tokens, views[0].block_size_tokens
        if said is not None and said != seen:
            return f"its events are of blocks of {seen} tokens, but it says that it has blocks of {said}"
        return "it computed the router's tokens, but its events are of others: it may key its blocks by something more"

    async def _difference(self, engine: _Checked, tokens: bytes) -> str | None:
        """How the engine's own tokens differ from ours; None if they don't, or it can't tell."""
        ours = memoryview(tokens).cast("I").tolist()
        try:
            theirs = await adapter_of(engine.facts.kind).tokenize(engine.http, engine.model, engine.messages)
        except EngineCallError:
            return None
        if theirs is None or theirs == ours:
            return None
        pairs = enumerate(zip(ours, theirs, strict=False))
        at = next((i for i, (our, their) in pairs if our != their), min(len(ours), len(theirs)))
        return f"its tokens differ from the router's from number {at} on ({len(theirs)} against {len(ours)}){_LIKELY}"

    def _views(self, engine: _Checked) -> dict[WorkerId, KvSnapshot]:
        return {w.id: w.kv for w in self._ledger.snapshot().workers if w.id in engine.workers}


_IN_ORDER = (KvFeedState.COMPLETE, KvFeedState.PARTIAL)
