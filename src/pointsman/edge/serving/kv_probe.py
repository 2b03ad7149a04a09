"""KvProbe: one prompt of known tokens for one engine, and what its answer and its KV events say of it."""

from __future__ import annotations

import asyncio
import enum
import math
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from pointsman.core.ledger.events import KvFeedState
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.snapshot import KvSnapshot
from pointsman.core.model.token_keys import GPU, pack_tokens, token_block_keys
from pointsman.core.model.worker import WorkerId
from pointsman.edge.engines.detect import adapter_of
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineCallError, EngineHttp, Trouble
from pointsman.edge.prompts.encoder import NotEncoded, PromptEncoder
from pointsman.edge.prompts.local_prompts import LocalPrompts
from pointsman.edge.wire.openai import ChatRequest, CompletionRequest, parse_chat, parse_completion

POLL_S = 0.05
EVENTS_LIMIT_S = 5.0
"""How long the events of a prompt may follow its answer."""
_WORDS = "signal points track junction platform lever crossing timetable"
_UNKNOWN_BLOCK_TOKENS = 128
"""Longer blocks than these are not looked for where the engine does not say how long its blocks are."""
_LIKELY = ": another tokenizer or chat template; set routing.tokenizers to the directory that it loads its own from"
_REFUSALS = (Trouble.NOT_THERE, Trouble.BAD_STATUS, Trouble.MALFORMED)
"""Troubles with one route; of the others the next route would tell the same."""
_LOWEST_ID, _HIGHEST_ID = 32, 255
"""Token ids that every vocabulary has."""


class UndecidedError(Exception):
    """Nothing can be said against the engine, nor for it; says why."""


class Shape(enum.Enum):
    """What a probe asks with. The first that leads to a verdict is the last that is sent."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    IDS = "/v1/completions with token ids"


@dataclass(frozen=True, slots=True)
class CheckedEngine:
    """One engine that is being checked. It may answer from any of its ranks."""

    name: str
    workers: tuple[WorkerId, ...]
    model: str
    http: EngineHttp
    facts: EngineFacts

    @property
    def adapter(self) -> str | None:
        """The model, if it is a LoRA adapter: it keys the blocks."""
        return self.model if self.model in self.facts.lora else None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None

    @property
    def prompt_tokens(self) -> int | None:
        return self.usage.prompt_tokens if self.usage else None

    @property
    def cached_tokens(self) -> int:
        details = self.usage.prompt_tokens_details if self.usage else None
        return (details.cached_tokens or 0) if details else 0


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt as it is sent, and the tokens that it should be."""

    path: str
    body: dict[str, object]
    said: str | list[dict[str, str]] | None
    """What the engine could be asked to tokenize; None: token ids need no tokenizing."""
    tokens: bytes

    @property
    def count(self) -> int:
        return len(memoryview(self.tokens).cast("I"))


class KvProbe:
    """Asks for one token a probe. Every prompt begins with a nonce: of what an engine holds it would announce nothing.

    `nonce` gives another text each time.
    """

    def __init__(
        self, ledger: Ledger, encoder: PromptEncoder, nonce: Callable[[], str], events_limit_s: float = EVENTS_LIMIT_S
    ) -> None:
        self._ledger = ledger
        self._encoder = encoder
        self._nonce = nonce
        self._events_limit_s = events_limit_s
        self._fleet: dict[WorkerId, KvSnapshot] = {}
        self._fleet_read_s = -math.inf

    def views(self, engine: CheckedEngine, max_age_s: float = 0.0) -> dict[WorkerId, KvSnapshot]:
        """What is known of the events of its workers. With an age, many engines that wait read the fleet once."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._fleet_read_s + max_age_s:
            self._fleet = {worker.id: worker.kv for worker in self._ledger.snapshot().workers}
            self._fleet_read_s = now_s
        return {worker: self._fleet[worker] for worker in engine.workers if worker in self._fleet}

    async def fault(self, engine: CheckedEngine) -> str | None:
        """What is wrong with the engine's events; None: they agree. Raises UndecidedError."""
        undecided: list[str] = []
        began = self.views(engine)
        async for prompt in self._prompts(engine, undecided):
            try:
                return await self._verdict(engine, prompt, began)
            except UndecidedError as error:
                undecided.append(str(error))
            except EngineCallError as error:
                undecided.append(str(error))
                if error.trouble not in _REFUSALS:
                    break
        raise UndecidedError("; ".join(dict.fromkeys(undecided)) or "it takes no prompts whose tokens are known here")

    # ---- what is asked

    async def _prompts(self, engine: CheckedEngine, undecided: list[str]) -> AsyncIterator[_Prompt]:
        can = engine.facts.capabilities
        local = isinstance(self._encoder.source(engine.model), LocalPrompts)
        shapes = ((Shape.CHAT, local and can.chat is not False), (Shape.TEXT, local and can.completions is not False))
        for shape, possible in shapes:
            made = await self._local(engine, shape) if possible else None
            if isinstance(made, NotEncoded):
                undecided.append(f"the router can't tokenize a plain prompt for {shape.value}: {made.detail}")
            elif made is not None:
                yield made
        if can.completions is not False and can.token_id_prompts is not False:
            yield self._of_ids(engine)

    async def _local(self, engine: CheckedEngine, shape: Shape) -> _Prompt | NotEncoded:
        text = " ".join([self._nonce(), *[_WORDS] * (1 + _length_tokens(engine) // 8)])
        messages = [{"role": "user", "content": text}]
        said: str | list[dict[str, str]] = messages if shape is Shape.CHAT else text
        body = self._body(engine, "messages" if shape is Shape.CHAT else "prompt", said)
        raw = msgspec.json.encode(body)
        parsed: ChatRequest | CompletionRequest = parse_chat(raw) if shape is Shape.CHAT else parse_completion(raw)
        encoded = await self._encoder.encode(engine.model, parsed)
        if isinstance(encoded, NotEncoded):
            return encoded
        return _Prompt(shape.value, body, said, encoded.tokens)

    def _of_ids(self, engine: CheckedEngine) -> _Prompt:
        """For what is tokenized by the engine itself, too: its blocks and its events can still be compared."""
        rng = random.Random(self._nonce())
        ids = [rng.randint(_LOWEST_ID, _HIGHEST_ID) for _ in range(_length_tokens(engine) + 1)]
        return _Prompt(Shape.TEXT.value, self._body(engine, "prompt", ids), None, pack_tokens(ids))

    def _body(self, engine: CheckedEngine, name: str, prompt: object) -> dict[str, object]:
        return {"model": engine.model, name: prompt, "max_tokens": 1, "temperature": 0}

    # ---- what comes back

    async def _verdict(self, engine: CheckedEngine, prompt: _Prompt, began: dict[WorkerId, KvSnapshot]) -> str | None:
        before = self.views(engine)
        answer = await engine.http.post_json(prompt.path, prompt.body, _Answer)
        told = answer.prompt_tokens
        if told is not None and told != prompt.count:
            return await self._difference(engine, prompt) or (
                f"it counts {told} tokens of a prompt where the router counts {prompt.count}{_LIKELY}"
            )
        if await self._announced(engine, prompt.tokens):
            return None
        difference = await self._difference(engine, prompt)
        if difference:
            return difference
        if answer.cached_tokens:
            raise UndecidedError(f"it held {answer.cached_tokens} tokens of the prompt before")
        if any(_lost(began.get(worker), view) for worker, view in self.views(engine).items()):
            raise UndecidedError("events were lost meanwhile")
        return self._why_silent(engine, prompt, before)

    async def _announced(self, engine: CheckedEngine, tokens: bytes) -> bool:
        """The events of the prompt's full blocks arrive."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._events_limit_s
        while not self._held(engine, tokens):
            if loop.time() >= deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _held(self, engine: CheckedEngine, tokens: bytes) -> bool:
        for spec in self._ledger.key_specs(engine.model):
            keys = token_block_keys(tokens, spec, engine.adapter).keys
            held = self._ledger.held(engine.model, spec, keys)
            most = max((held.get(worker, {}).get(GPU, 0) for worker in engine.workers), default=0)
            if keys and most >= max(1, len(keys) - 1) * spec.block_size_tokens:
                return True
        return False

    def _why_silent(self, engine: CheckedEngine, prompt: _Prompt, before: dict[WorkerId, KvSnapshot]) -> str:
        """Raises UndecidedError where it may not be the engine's fault that the prompt's events did not come."""
        views = self.views(engine)
        if len(views) < len(engine.workers):
            raise UndecidedError("a rank of it is gone")
        if any(_orphaned(before.get(worker), view) for worker, view in views.items()):
            raise UndecidedError("its prompts begin with blocks that it held before anybody listened")
        if any(view.state is KvFeedState.OFF for view in views.values()):
            raise UndecidedError("events of a rank of it do not arrive, and that rank may have answered")
        holding = [view for view in views.values() if any(view.blocks.values())]
        if not holding:
            return (
                f"no event came of a prompt of {prompt.count} tokens that it computed: its prefix cache may be off, "
                "its blocks may be longer, or its events go elsewhere"
            )
        said, seen = engine.facts.block_size_tokens, holding[0].block_size_tokens
        if said is not None and said != seen:
            return f"its events are of blocks of {seen} tokens, but it says that it has blocks of {said}"
        return "it computed the router's tokens, but its events are of others: it may key its blocks by something more"

    async def _difference(self, engine: CheckedEngine, prompt: _Prompt) -> str | None:
        """How the engine's own tokens differ from ours; None if they don't, or it can't tell."""
        if prompt.said is None:
            return None
        ours = memoryview(prompt.tokens).cast("I").tolist()
        try:
            theirs = await adapter_of(engine.facts.kind).tokenize(engine.http, engine.model, prompt.said)
        except EngineCallError:
            return None
        if theirs is None or theirs == ours:
            return None
        pairs = enumerate(zip(ours, theirs, strict=False))
        at = next((i for i, (our, their) in pairs if our != their), min(len(ours), len(theirs)))
        return f"its tokens differ from the router's from number {at} on ({len(theirs)} against {len(ours)}){_LIKELY}"


def _length_tokens(engine: CheckedEngine) -> int:
    """Several blocks, and no more than half of what fits into the engine."""
    wanted = 4 * (engine.facts.block_size_tokens or _UNKNOWN_BLOCK_TOKENS)
    most = engine.facts.max_context_tokens
    return wanted if most is None else min(wanted, most // 2)


def _orphaned(before: KvSnapshot | None, now: KvSnapshot) -> bool:
    """Blocks came whose beginning nobody had announced."""
    return now.orphan_blocks > (0 if before is None else before.orphan_blocks)


def _lost(before: KvSnapshot | None, now: KvSnapshot) -> bool:
    """The feed was in order, and is not any more."""
    return before is not None and before.state is KvFeedState.COMPLETE and now.state is not KvFeedState.COMPLETE
