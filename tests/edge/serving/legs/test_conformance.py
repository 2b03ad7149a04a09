"""From a client's body over two legs to its answer, before engines that keep the documented contracts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pointsman.core.ledger.snapshot import WorkerSnapshot
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from support.fetch import Response, fetch
from support.pd_engines import (
    MODEL,
    Contexts,
    MooncakePd,
    PdEngine,
    Rooms,
    SglangPd,
    Transfers,
    TrtllmPd,
    prompt_of,
    words_of,
)
from support.told_streams import hear
from support.waiting import eventually

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = 7
CHATTED = {"messages": [{"role": "user", "content": 'How long is a piece of string? Ünïcode, "quotes", 😀'}]}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, CHATTED),
    "completion": (COMPLETIONS, {"prompt": "Once upon a time"}),
    "token ids": (COMPLETIONS, {"prompt": [5, 6, 7]}),
    "nulls": (CHAT, CHATTED | {"stream_options": None, "n": 1, "max_completion_tokens": None, "tools": None}),
    "the newer limit": (CHAT, CHATTED | {"max_completion_tokens": TOKENS, "max_tokens": None}),
    "whole numbers": (COMPLETIONS, {"prompt": "Once", "seed": 2**60 + 1, "user": "u", "stop": ["never"]}),
}


def counted(worker: WorkerSnapshot) -> int:
    """What the ledger thinks that a worker has."""
    return worker.running + worker.sequences + worker.prefill_tokens + worker.kv_tokens


class Pair:
    """A prefill engine, a decode engine, a front end that always moves KV."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.prefill: PdEngine
        self.decode: PdEngine
        self.frontend: Frontend
        self._pool = UpstreamPool()

    async def open(
        self, prefill: PdEngine, decode: PdEngine, *, mode: TransferMode = TransferMode.ALWAYS, **said: Any
    ) -> None:
        self.prefill, self.decode = prefill, decode
        self._stack.push_async_callback(self._pool.close)
        for engine in (prefill, decode):
            await engine.start()
            self._stack.push_async_callback(engine.stop)
        sources = (
            WorkerSource("p", prefill.url, role=Role.PREFILL, **said),
            WorkerSource("d", decode.url, role=Role.DECODE, **said),
        )
        rules = TransferRules(mode)
        self.frontend = Frontend(FrontendSettings(sources=sources, port=0, admin_port=0, seed=1, transfer=rules))
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        # That of the prefill engine says that it answers nobody.
        await eventually(lambda: {w.state for w in self.frontend.ledger.snapshot().workers} == {"prefill", "ready"})
        for engine in (prefill, decode):  # of what was asked when they joined
            engine.asked.clear()
            engine.wrong.clear()

    async def ask(self, path: str, body: dict[str, Any]) -> Response:
        text = json.dumps({"model": MODEL, "max_tokens": TOKENS, **body}).encode()
        origin, fields = Origin.parse(self.frontend.url), [(b"content-type", b"application/json")]
        return await fetch(self._pool, origin, "POST", path, headers=fields, body=text, timeout_s=30)

    async def check(self) -> None:
        """Nobody was asked against the contract, and nothing is left anywhere. The leg of a prompt may end after the
        answer has."""
        assert (self.prefill.wrong, self.decode.wrong) == ([], [])
        await eventually(lambda: not any(map(counted, self.frontend.ledger.snapshot().workers)))


def sglang(monkeypatch: pytest.MonkeyPatch) -> tuple[PdEngine, PdEngine, dict[str, Any]]:
    rooms = Rooms()
    return SglangPd("prefill", rooms), SglangPd("decode", rooms), {}


def trtllm(monkeypatch: pytest.MonkeyPatch) -> tuple[PdEngine, PdEngine, dict[str, Any]]:
    contexts = Contexts()
    return TrtllmPd("context", contexts), TrtllmPd("generation", contexts), {}


def mooncake(monkeypatch: pytest.MonkeyPatch) -> tuple[PdEngine, PdEngine, dict[str, Any]]:
    transfers = Transfers()
    producer, consumer = (
        MooncakePd("producer", transfers, produces=True),
        MooncakePd("consumer", transfers, produces=False),
    )
    began = producer.start

    async def start() -> None:
        await began()
        # A port that nobody chose can't be the usual one.
        monkeypatch.setattr("pointsman.edge.engines.handover.vllm_mooncake.BOOTSTRAP_PORT", transfers.bootstrap_port)

    monkeypatch.setattr(producer, "start", start)
    return producer, consumer, {"cache_transport": "mooncake"}


KINDS: dict[str, Callable[[pytest.MonkeyPatch], tuple[PdEngine, PdEngine, dict[str, Any]]]] = {
    "sglang": sglang,
    "trtllm": trtllm,
    "mooncake": mooncake,
}


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        made = Pair(stack)
        prefill, decode, said = KINDS[request.param](monkeypatch)
        await made.open(prefill, decode, **said)
        yield made


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", kinds, indirect=True)


def text_of(path: str, answer: Response) -> str:
    if answer.body.startswith(b"data: "):
        return "".join(hear(answer.body).texts.values())
    choice = json.loads(answer.body)["choices"][0]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


async def together(pair: Pair, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[Response]:
    return list(await asyncio.gather(*(pair.ask(path, body) for path, body in asked)))


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_every_request_gets_what_one_engine_would_say(pair: Pair, *, streamed: bool) -> None:
    extra = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    for name, (path, body) in ASKED.items():
        answer = await pair.ask(path, body | extra)
        assert answer.status == 200, answer.body
        assert text_of(path, answer) == "".join(words_of(prompt_of(body), TOKENS)), name
        assert answer.header(b"x-pointsman-prefill-worker") == b"p/0"
        assert answer.header(b"x-pointsman-worker") == b"d/0"
    assert len(pair.prefill.asked) == len(pair.decode.asked) == len(ASKED)
    await eventually(lambda: pair.frontend.traffic.transfers["apart", "moved"] == len(ASKED))
    await pair.check()


async def test_many_at_once_get_each_their_own(pair: Pair) -> None:
    asked = [(COMPLETIONS, {"prompt": f"Tale number {number}"}) for number in range(40)]
    for (path, body), answer in zip(asked, await together(pair, asked), strict=True):
        assert text_of(path, answer) == "".join(words_of(prompt_of(body), TOKENS))
    await pair.check()


async def test_what_the_prefill_engine_refuses_is_refused_at_once(pair: Pair) -> None:
    pair.prefill.fails = 422
    answer = await pair.ask(CHAT, CHATTED)
    assert answer.status == 422
    assert b"was told to fail" in answer.body
    # Who would wait for a room that never opens is told to stop.
    await eventually(lambda: len(pair.decode.left) == len(pair.decode.asked))
    await pair.check()


async def test_what_the_decode_engine_fails_leaves_nobody_waiting_at_the_other_one(pair: Pair) -> None:
    pair.decode.fails = 500
    answer = await pair.ask(CHAT, CHATTED)
    assert answer.status >= 500
    if isinstance(pair.prefill, SglangPd):  # it waits in its room for whoever failed
        await eventually(lambda: len(pair.prefill.left) == len(pair.prefill.asked) > 0)
    await pair.check()


async def test_a_prefill_engine_that_is_late_is_waited_for(pair: Pair) -> None:
    pair.prefill.late_s = 0.3
    answer = await pair.ask(CHAT, CHATTED | {"stream": True})
    assert text_of(CHAT, answer) == "".join(words_of(prompt_of(CHATTED), TOKENS))
    assert answer.header(b"x-pointsman-prefill-worker") == b"p/0"
    await pair.check()


@of("trtllm", "mooncake")
async def test_a_prompt_that_was_not_computed_is_computed_where_it_is_answered(pair: Pair) -> None:
    pair.prefill.fails = 500
    answer = await pair.ask(CHAT, CHATTED)
    assert answer.status == 200, answer.body
    assert text_of(CHAT, answer) == "".join(words_of(prompt_of(CHATTED), TOKENS))
    assert answer.header(b"x-pointsman-prefill-worker") is None
    assert sum(pair.frontend.traffic.transfer_fallbacks.values()) == 1
    await pair.check()


@of("sglang")
async def test_an_engine_that_only_decodes_is_never_asked_for_a_whole_request(pair: Pair) -> None:
    pair.prefill.fails = 500
    answer = await pair.ask(CHAT, CHATTED)
    assert answer.status == 503
    assert b"prefill at p/0 failed" in answer.body
    await eventually(lambda: len(pair.decode.left) == len(pair.decode.asked))
    await pair.check()


@of("sglang")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("prompts", [["a", "b", "a"], ["alone"], [[1, 2], [3]]], ids=["texts", "one", "ids"])
async def test_several_prompts_meet_in_a_room_each(pair: Pair, *, prompts: list[Any], streamed: bool) -> None:
    answer = await pair.ask(COMPLETIONS, {"prompt": prompts} | ({"stream": True} if streamed else {}))
    assert answer.status == 200, answer.body
    wanted = ["".join(words_of(prompt_of({"prompt": one}), TOKENS)) for one in prompts]
    events = (
        [line[6:] for line in answer.body.splitlines() if line.startswith(b"data: {")] if streamed else [answer.body]
    )
    texts = [""] * len(prompts)
    for event in events:
        for choice in json.loads(event)["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == wanted
    await pair.check()


@of("sglang")
async def test_a_request_that_can_not_be_split_says_that_nobody_takes_it_whole(pair: Pair) -> None:
    answer = await pair.ask(COMPLETIONS, {"prompt": "a", "n": 2})
    assert answer.status == 503
    assert b"its role does not fit" in answer.body
    assert b"n asks for more than one answer" in answer.body
    assert (pair.prefill.asked, pair.decode.asked) == ([], [])
    await pair.check()


async def test_engines_of_halves_that_may_pass_nothing_on_say_why_they_take_nothing() -> None:
    rooms = Rooms()
    async with AsyncExitStack() as stack:
        pair = Pair(stack)
        await pair.open(SglangPd("prefill", rooms), SglangPd("decode", rooms), mode=TransferMode.OFF)
        answer = await pair.ask(CHAT, CHATTED)
        assert answer.status == 503
        assert b"serve halves of requests only" in answer.body
        assert b"routing.kv_transfer" in answer.body
        assert (pair.prefill.asked, pair.decode.asked) == ([], [])


@of("trtllm")
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_a_context_that_ends_the_answer_is_the_answer(pair: Pair, *, streamed: bool) -> None:
    assert isinstance(pair.prefill, TrtllmPd)
    pair.prefill.ends = True
    answer = await pair.ask(CHAT, CHATTED | ({"stream": True} if streamed else {}))
    assert answer.status == 200, answer.body
    assert text_of(CHAT, answer) == words_of(prompt_of(CHATTED), 1)[0]
    assert b"disaggregated_params" not in answer.body
    assert pair.decode.asked == []
    await pair.check()


async def test_a_client_that_leaves_takes_both_legs_with_it(pair: Pair) -> None:
    pair.prefill.late_s = pair.decode.late_s = 10.0
    asked = asyncio.create_task(pair.ask(CHAT, CHATTED))
    await eventually(lambda: len(pair.prefill.asked) == 1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await eventually(lambda: len(pair.prefill.left) == 1 and len(pair.decode.left) == len(pair.decode.asked))
    await pair.check()


@pytest.mark.parametrize("name", ["bootstrap_room", "disaggregated_params", "kv_transfer_params"])
async def test_a_client_s_own_hand_shake_reaches_no_engine(pair: Pair, name: str) -> None:
    await pair.ask(CHAT, CHATTED | {name: {"a": 1}})
    sent = [body[name] for engine in (pair.prefill, pair.decode) for body in engine.asked if name in body]
    assert {"a": 1} not in sent
