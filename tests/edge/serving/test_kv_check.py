"""What a check of an engine's KV events finds, with an engine that tokenizes and announces as a test says."""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import tokenizers

from pointsman.core.ledger.events import BlocksStored, KvFeedChanged, KvFeedState, WorkerJoined
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.snapshot import KvSnapshot
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.token_keys import KeySpec
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource
from pointsman.edge.engines.http import EngineCallError, Trouble
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.encoder import NoPrompts, PromptEncoder
from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.prompts.local_prompts import load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerFiles
from pointsman.edge.serving.kv_check import CheckTiming, KvCheck

SIZE = 16
SOURCE = WorkerSource(name="a", url="http://127.0.0.1:1")
CAN = Capabilities(chat=True, tokenize=True, kv_events=(KvEventSource(0, "tcp://*:5557"),))
FACTS = EngineFacts(kind="vllm", version="1", models=("m",), block_size_tokens=SIZE, capabilities=CAN)
SYSTEM = "a word " * SIZE
AGREES = "a: KV events checked: its tokens and blocks are those of the router"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUICK = CheckTiming(idle_s=0.1, patience_s=0.2, events_s=0.1, again_s=0.05, longest_again_s=0.1, poll_s=0.01)


@dataclass
class Engine:
    """Answers and announces like vLLM: a block that it holds already is not announced."""

    ledger: Ledger
    tokens_of: Callable[[str], list[int]]
    size: int = SIZE
    announces: bool = True
    worker: str = "a/0"
    cached_tokens: int | None = None
    """What it says, if it does not count."""
    refuses: dict[str, Trouble] = field(default_factory=dict)
    changes: Callable[[list[int]], list[int]] = list
    """The tokens that its events are of."""
    delay_s: float = 0.0
    before_events: Callable[[], None] = lambda: None
    known: set[tuple[int, ...]] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    def to(self, source: WorkerSource, timeout_s: float | None = None) -> Engine:
        return self

    async def post_json(self, path: str, body: dict, kind: type) -> object:
        tokens = self.tokens_in(body)
        if path == "/tokenize":
            return msgspec.convert({"tokens": tokens}, kind)
        self.asked.append(path)
        if path in self.refuses:
            raise EngineCallError(self.refuses[path], f"POST {path} went wrong")
        self.prompts.append(tokens)
        cached = len([prefix for prefix in self.blocks(tokens) if prefix in self.known]) * self.size
        self.before_events()
        if self.announces:
            asyncio.get_running_loop().call_later(self.delay_s, self.compute, self.changes(tokens))
        details = {"cached_tokens": cached if self.cached_tokens is None else self.cached_tokens}
        return msgspec.convert({"usage": {"prompt_tokens": len(tokens), "prompt_tokens_details": details}}, kind)

    def tokens_in(self, body: dict) -> list[int]:
        if "messages" in body:
            return self.tokens_of(SYSTEM + body["messages"][0]["content"])
        return body["prompt"] if isinstance(body["prompt"], list) else self.tokens_of(body["prompt"])

    def compute(self, tokens: list[int]) -> None:
        parent = None
        for prefix in self.blocks(tokens):
            if prefix not in self.known:
                self.known.add(prefix)
                packed = array("I", prefix[-self.size :]).tobytes()
                stored = BlocksStored(self.worker, 0.0, (hash(prefix),), parent, packed, KeySpec(self.size))
                self.ledger.apply(stored)
            parent = hash(prefix)

    def blocks(self, tokens: list[int]) -> list[tuple[int, ...]]:
        """Each full block, as all tokens up to its end."""
        return [tuple(tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)]


def write_tokenizer(folder: Path, template: str | None) -> None:
    """A tokenizer of bytes."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({} if template is None else {"chat_template": template}))


class Bench:
    """One engine, the router's side of it, and what the log says of checks."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        write_tokenizer(folder, SYSTEM + "{% for message in messages %}{{ message.content }}{% endfor %}")
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.engine = Engine(Ledger(), lambda text: tokenizer.encode(text).ids)
        self.encoder = PromptEncoder()
        self.facts = FACTS
        self.timing = QUICK
        self._folder = folder
        self._caplog = caplog
        self._nonces = iter(f"nonce {i}" for i in range(100))
        self.checks: list[KvCheck] = []

    async def local(self) -> None:
        prompts = await load_local_prompts(TokenizerFiles(self._folder, "given"), dialect=Dialect.VLLM)
        self.encoder.register("m", prompts)

    def join(self, *states: KvFeedState) -> KvCheck:
        check = KvCheck(
            self.engine.ledger,
            self.encoder,
            self.engine,
            self.engine.ledger.apply,
            lambda: 0.0,
            timing=self.timing,
            nonce=lambda: next(self._nonces),
        )
        self.checks.append(check)
        for rank in self.facts.ranks:
            self.engine.ledger.apply(WorkerJoined(SOURCE.spec(self.facts, rank), 0.0))
        for rank, state in enumerate(states):
            self.feed(state, rank)
        check.engine_known(SOURCE, self.facts, [f"a/{rank}" for rank in self.facts.ranks])
        return check

    def feed(self, state: KvFeedState, rank: int = 0) -> None:
        self.engine.ledger.apply(KvFeedChanged(f"a/{rank}", 0.0, state, "so"))

    async def said(self, part: str) -> str:
        """The first line with this."""
        async with asyncio.timeout(30):
            while not (found := [line for line in self._caplog.messages if part in line]):
                await asyncio.sleep(0.005)
        return found[0]

    async def checked(self, *states: KvFeedState) -> tuple[KvSnapshot, str]:
        """Let it join, and wait for the first verdict."""
        self._caplog.clear()
        self.join(*(states or (KvFeedState.COMPLETE,)))
        line = await self.said("a: ")
        return self.kv(), line

    def kv(self, rank: int = 0) -> KvSnapshot:
        return next(w.kv for w in self.engine.ledger.snapshot().workers if w.id == f"a/{rank}")


@pytest.fixture
async def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Bench]:
    caplog.set_level(logging.INFO, logger="pointsman.serving")
    bench = Bench(tmp_path, caplog)
    await bench.local()
    yield bench
    for check in bench.checks:
        await check.close()
    bench.encoder.close()


# ---- engines that agree


async def test_an_engine_that_agrees_is_used(bench):
    kv, said = await bench.checked()
    assert said == AGREES
    assert kv.confidence == 1.0
    assert bench.engine.asked == [CHAT]
    assert len(bench.engine.prompts[0]) >= 3 * SIZE


async def test_one_that_was_checked_before_is_not_blamed_for_what_it_holds(bench):
    await bench.checked()
    held = bench.engine.known
    bench.engine.ledger = Ledger()  # a router that starts later, without the events of before
    bench.engine.known = {prefix for prefix in held if len(prefix) > len(SYSTEM)}  # the template's blocks come anew

    kv, said = await bench.checked(KvFeedState.PARTIAL)

    assert said == AGREES
    assert kv.confidence < 1.0


async def test_where_the_template_was_held_before_a_text_without_it_is_compared(bench):
    engine = bench.engine
    engine.known.update(engine.blocks(engine.tokens_of(SYSTEM + "as others asked")))

    _, said = await bench.checked(KvFeedState.PARTIAL)

    assert said == AGREES
    assert engine.asked == [CHAT, TEXT]


async def test_no_two_prompts_begin_alike(bench):
    await bench.checked()
    bench.facts = replace(FACTS, capabilities=replace(CAN, chat=False))
    await bench.checked()
    await bench.checked()
    texts = [tuple(prompt[:SIZE]) for prompt in bench.engine.prompts[1:]]
    assert len(set(texts)) == len(texts) == 2


async def test_events_that_follow_late_are_waited_for(bench):
    bench.timing = replace(QUICK, events_s=2.0)
    bench.engine.delay_s = 0.2
    _, said = await bench.checked()
    assert said == AGREES


async def test_another_block_size_than_the_engine_says_is_learned(bench):
    bench.engine.size = 2 * SIZE
    kv, said = await bench.checked()
    assert said == AGREES
    assert (kv.block_size_tokens, kv.confidence) == (2 * SIZE, 1.0)


async def test_any_rank_may_have_answered(bench):
    bench.facts = replace(FACTS, ranks=(0, 1))
    bench.engine.worker = "a/1"
    _, said = await bench.checked(KvFeedState.COMPLETE, KvFeedState.COMPLETE)
    assert said == AGREES
    assert bench.kv(0).confidence == bench.kv(1).confidence == 1.0


async def test_a_model_without_a_chat_template_is_checked_by_a_text(bench, tmp_path):
    write_tokenizer(tmp_path, None)
    await bench.local()
    kv, said = await bench.checked()
    assert said == AGREES
    assert bench.engine.asked == [TEXT]
    assert kv.confidence == 1.0


async def test_an_engine_without_a_chat_route_is_checked_by_a_text(bench):
    bench.engine.refuses[CHAT] = Trouble.NOT_THERE
    _, said = await bench.checked()
    assert said == AGREES


async def test_where_the_engine_tokenizes_its_blocks_are_compared_by_token_ids(bench):
    async def never(prompt: object) -> None:
        raise AssertionError("nothing has to be tokenized")

    bench.encoder.register("m", EnginePrompts(never))
    _, said = await bench.checked()
    assert said == AGREES
    assert bench.engine.asked == [TEXT]


async def test_a_feed_that_waits_for_its_first_event_gets_one(bench):
    bench.engine.before_events = lambda: bench.feed(KvFeedState.PARTIAL)
    _, said = await bench.checked(KvFeedState.SYNCING)
    assert said == AGREES


# ---- faults


async def test_other_tokens_are_named_with_their_place(bench):
    ours = bench.engine.tokens_of
    bench.engine.tokens_of = lambda text: [*ours(text)[:20], 1, 2, 3]
    kv, said = await bench.checked()
    assert "its tokens differ from the router's from number 20 on (23 against" in said
    assert kv.confidence == 0.0


async def test_as_many_but_other_tokens_are_found_by_the_events(bench):
    ours = bench.engine.tokens_of
    bench.engine.tokens_of = lambda text: [token + 1 for token in ours(text)]
    _, said = await bench.checked()
    assert "its tokens differ from the router's from number 0 on" in said


async def test_silence_is_named_for_all_ranks(bench):
    bench.facts = replace(FACTS, ranks=(0, 1))
    bench.engine.announces = False
    kv, said = await bench.checked(KvFeedState.COMPLETE, KvFeedState.COMPLETE)
    assert "no event came of a prompt" in said
    assert kv.confidence == bench.kv(1).confidence == 0.0


async def test_events_of_other_blocks_are_named(bench):
    bench.engine.changes = lambda tokens: [token + 1 for token in tokens]
    _, said = await bench.checked()
    assert "its events are of others" in said


async def test_a_fault_goes_away(bench):
    bench.engine.announces = False
    kv, said = await bench.checked()
    assert "no event came" in said
    assert kv.confidence == 0.0
    bench.engine.announces = True
    await bench.said(AGREES)
    assert bench.kv().confidence == 1.0


async def test_the_same_fault_is_told_once(bench, caplog):
    bench.engine.announces = False
    await bench.checked()
    async with asyncio.timeout(30):
        while len(bench.engine.asked) < 3:
            await asyncio.sleep(0.01)
    assert sum("no event came" in line for line in caplog.messages) == 1


# ---- no verdict


@pytest.mark.parametrize(
    ("trouble", "asked"),
    [(Trouble.UNREACHABLE, [CHAT]), (Trouble.TIMED_OUT, [CHAT]), (Trouble.BAD_STATUS, [CHAT, TEXT])],
)
async def test_an_engine_that_fails_is_not_blamed_and_is_asked_again(bench, trouble, asked):
    bench.engine.refuses = {CHAT: trouble, TEXT: trouble}
    kv, said = await bench.checked()
    assert "a: its KV events could not be checked: POST " in said
    assert list(dict.fromkeys(bench.engine.asked)) == asked
    assert kv.reason == "so"
    bench.engine.refuses = {}
    await bench.said(AGREES)


async def test_an_engine_that_says_that_it_held_the_prompt_is_not_blamed(bench):
    bench.engine.announces = False
    bench.engine.cached_tokens = SIZE
    kv, said = await bench.checked()
    assert f"could not be checked: it held {SIZE} tokens of the prompt before" in said
    assert kv.confidence == 1.0


async def test_silence_proves_nothing_while_a_rank_has_no_feed(bench):
    bench.facts = replace(FACTS, ranks=(0, 1))
    bench.engine.announces = False
    _, said = await bench.checked(KvFeedState.COMPLETE, KvFeedState.OFF)
    assert "events of a rank of it do not arrive" in said


async def test_silence_proves_nothing_while_events_are_lost(bench):
    bench.engine.announces = False
    bench.engine.before_events = lambda: bench.feed(KvFeedState.PARTIAL)
    _, said = await bench.checked()
    assert "events were lost meanwhile" in said


async def test_an_engine_that_takes_nothing_that_can_be_compared_stays_unchecked(bench, tmp_path):
    write_tokenizer(tmp_path, None)
    await bench.local()
    bench.facts = replace(FACTS, capabilities=replace(CAN, completions=False))
    kv, said = await bench.checked()
    assert "could not be checked: the router can't tokenize a plain prompt" in said
    assert kv.confidence == 1.0
    assert bench.engine.asked == []


@pytest.mark.parametrize("known", [True, False])
async def test_what_a_check_waits_for_is_told_and_it_begins_when_that_is_there(bench, known):
    if known:
        bench.encoder.register("m", NoPrompts("not found"))
    else:
        bench.encoder.forget("m")
    _, said = await bench.checked()
    assert "a: its KV events are not checked yet: there is no tokenizer for m" in said
    await bench.local()
    await bench.said(AGREES)


async def test_a_feed_that_never_connects_is_told(bench):
    _, said = await bench.checked(KvFeedState.OFF)
    assert said == "a: its KV events are not checked yet: no feed of its KV events is connected"


# ---- whom and when


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, kind="openai"),
        replace(FACTS, capabilities=Capabilities(chat=True, kv_events=())),
        replace(FACTS, kv=KvShape(HandShake.SGLANG, alone=False)),
    ],
)
async def test_engines_that_are_never_asked(bench, facts):
    bench.facts = facts
    check = bench.join(KvFeedState.COMPLETE)
    await asyncio.sleep(0.05)
    assert bench.engine.asked == []
    assert not check._tasks._tasks


async def test_an_engine_that_left_is_asked_no_more(bench):
    bench.engine.announces = False
    await bench.checked()
    bench.checks[0].engine_left(SOURCE)
    await asyncio.sleep(0)
    asked = len(bench.engine.asked)
    await asyncio.sleep(0.2)
    assert len(bench.engine.asked) == asked
