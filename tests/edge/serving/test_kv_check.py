"""What a check of an engine's KV events finds, with an engine that tokenizes and announces as a test says."""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import tokenizers

from pointsman.core.ledger.events import BlocksStored, KvFeedChanged, KvFeedState, WorkerJoined
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.snapshot import KvSnapshot
from pointsman.core.model.token_keys import KeySpec
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.encoder import PromptEncoder
from pointsman.edge.prompts.local_prompts import load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.serving.kv_check import KvCheck

SIZE = 16
WORKER = "a/0"
SOURCE = WorkerSource(name="a", url="http://127.0.0.1:1")
CAN = Capabilities(chat=True, tokenize=True, kv_events=(KvEventSource(0, "tcp://*:5557"),))
FACTS = EngineFacts(kind="vllm", version="1", models=("m",), block_size_tokens=SIZE, capabilities=CAN)
SYSTEM = "a word " * SIZE


@dataclass
class Engine:
    """Answers and announces like vLLM: a block that it holds already is not announced."""

    ledger: Ledger
    tokens_of: Callable[[str], list[int]]
    size: int = SIZE
    announces: bool = True
    known: set[tuple[int, ...]] = field(default_factory=set)
    prompts: list[list[int]] = field(default_factory=list)

    def to(self, source: WorkerSource) -> Engine:
        return self

    async def post_json(self, path: str, body: dict, kind: type) -> object:
        tokens = self.tokens_of(body["messages"][0]["content"])
        if path == "/tokenize":
            return msgspec.convert({"tokens": tokens}, kind)
        self.prompts.append(tokens)
        if self.announces:
            self.compute(tokens)
        return msgspec.convert({"usage": {"prompt_tokens": len(tokens)}}, kind)

    def compute(self, tokens: list[int]) -> None:
        parent = None
        for prefix in self.blocks(tokens):
            if prefix not in self.known:
                self.known.add(prefix)
                packed = array("I", prefix[-self.size :]).tobytes()
                stored = BlocksStored(WORKER, 0.0, (hash(prefix),), parent, packed, KeySpec(self.size))
                self.ledger.apply(stored)
            parent = hash(prefix)

    def blocks(self, tokens: list[int]) -> list[tuple[int, ...]]:
        """Each full block, as all tokens up to its end."""
        return [tuple(tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of bytes; its chat template begins with more than a block that all prompts share."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=bytes_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    template = SYSTEM + "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return tmp_path


def bytes_vocabulary() -> dict[str, int]:
    return {letter: i for i, letter in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}


@pytest.fixture
async def engine(folder: Path) -> Engine:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Engine(Ledger(), lambda content: tokenizer.encode(SYSTEM + content).ids)


@pytest.fixture
async def check(engine: Engine, folder: Path) -> AsyncIterator[Callable]:
    """Let an engine join whose feed is in this state, and wait for what the log says of the check."""
    encoder = PromptEncoder()
    encoder.register("m", await load_local_prompts(TokenizerFiles(folder, "given"), dialect=Dialect.VLLM))
    checks: list[KvCheck] = []

    async def joined(caplog, state: KvFeedState = KvFeedState.COMPLETE) -> tuple[KvSnapshot, str]:
        caplog.set_level(logging.INFO, logger="pointsman.serving")
        check = KvCheck(engine.ledger, encoder, engine, engine.ledger.apply, lambda: 0.0)
        checks.append(check)
        engine.ledger.apply(WorkerJoined(SOURCE.spec(FACTS, 0), 0.0))
        engine.ledger.apply(KvFeedChanged(WORKER, 0.0, state, "so"))
        check.engine_known(SOURCE, FACTS, [WORKER])
        async with asyncio.timeout(8):
            while not caplog.messages:
                await asyncio.sleep(0.01)
        (worker,) = engine.ledger.snapshot().workers
        return worker.kv, caplog.messages[-1]

    yield joined
    for check in checks:
        await check.close()
    encoder.close()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.edge.serving.kv_check.EVENTS_LIMIT_S", 0.2)


async def test_an_engine_that_agrees_is_used(check, engine, caplog):
    kv, said = await check(caplog)
    assert said == "a: KV events checked: its tokens and blocks are those of the router"
    assert kv.confidence == 1.0
    assert len(engine.prompts[0]) >= 3 * SIZE


async def test_an_engine_that_was_checked_before_is_not_blamed_for_what_it_holds(check, engine, caplog):
    await check(caplog)
    held = engine.known
    engine.ledger = Ledger()  # a router that starts later, without the events of before
    engine.known = {prefix for prefix in held if len(prefix) > len(SYSTEM)}  # the template's blocks come anew
    caplog.clear()

    kv, said = await check(caplog, KvFeedState.PARTIAL)

    assert said == "a: KV events checked: its tokens and blocks are those of the router"
    assert kv.confidence < 1.0


async def test_nothing_is_said_where_the_template_itself_was_held_before(check, engine, caplog):
    engine.known.update(engine.blocks(engine.tokens_of("as others asked")))

    kv, said = await check(caplog, KvFeedState.PARTIAL)

    assert said.startswith("a: its KV events could not be checked: its prompts begin with blocks that it held before")
    assert kv.reason == "so"


async def test_other_tokens_are_named_with_their_place(check, engine, caplog):
    ours = engine.tokens_of
    engine.tokens_of = lambda content: [*ours(content)[:20], 1, 2, 3]

    kv, said = await check(caplog)

    assert "its tokens differ from the router's from number 20 on (23 against" in said
    assert kv.confidence == 0.0


async def test_another_block_size_than_the_engine_says_is_learned(check, engine, caplog):
    engine.size = 2 * SIZE

    kv, said = await check(caplog)

    assert said.startswith("a: KV events checked")
    assert (kv.block_size_tokens, kv.confidence) == (2 * SIZE, 1.0)


async def test_silence_is_named(check, engine, caplog):
    engine.announces = False

    kv, said = await check(caplog)

    assert "no event came of a prompt that it computed" in said
    assert kv.confidence == 0.0
