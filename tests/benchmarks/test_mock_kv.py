"""The mock engine with KV events, and the check that a front end before it truly looks prompts up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import tokenizers
import zmq
import zmq.asyncio

from harness import kv_status
from harness.mock_answers import MODEL
from harness.mock_engine import KvSide, MockConnection, Pacer
from harness.mock_kv import BLOCK_TOKENS, Beginnings, MockKvCache, MockTokenizer, hold
from harness.processes import BenchmarkError
from pointsman.edge.wire.kv_events import BlockRemoved, BlockStored, decode_batch, decode_frames

TEMPLATE = "{% for m in messages %}<s>{{ m.role }} {{ m.content }}{% endfor %}"
SHORT = Beginnings(groups=2, prefix_words=40, tail_words=4)


@pytest.fixture
async def tokenizer(tmp_path: Path) -> AsyncIterator[MockTokenizer]:
    """A word-level tokenizer in a directory as a model has it."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "?": 1, "user": 2, "time": 3}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([tokenizers.AddedToken("<s>", special=True, normalized=False)])
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    loaded = MockTokenizer(MODEL)
    await loaded.load(tmp_path)
    yield loaded
    loaded.close()


@pytest.fixture
async def caches() -> AsyncIterator[list[MockKvCache]]:
    """Caches of three engines, with their sockets."""
    opened = [MockKvCache() for _ in range(3)]
    for cache in opened:
        cache.open()
    yield opened
    for cache in opened:
        cache.close()


async def _replayed(cache: MockKvCache) -> list[BlockStored | BlockRemoved]:
    """All events since the start, asked for at the replay socket."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.connect(str(cache.sources["0"]["replay_endpoint"]))
        await socket.send_multipart([b"", (0).to_bytes(8, "big")])
        events: list[BlockStored | BlockRemoved] = []
        while payload := (await socket.recv_multipart())[-1]:
            events += decode_batch(payload).events
        return events
    finally:
        context.destroy(linger=0)


async def test_beginnings_are_held_by_two_engines_each(caches: list[MockKvCache], tokenizer: MockTokenizer) -> None:
    await hold(caches, tokenizer, [SHORT])
    held = [await _replayed(cache) for cache in caches]
    assert [len(events) for events in held] == [1, 2, 1]
    event = held[0][0]
    assert isinstance(event, BlockStored)
    assert len(event.block_hashes) == 42 // BLOCK_TOKENS  # 40 words, `<s>` and `user`; the rest is no full block
    assert event.token_ids[:2] == (0, 2)


async def test_a_prompt_is_announced_once_and_then_what_is_new(
    caches: list[MockKvCache], tokenizer: MockTokenizer
) -> None:
    cache = caches[0]
    for count in (40, 40, 70):
        content = " ".join(["time"] * count)
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]})
        cache.store(await tokenizer.tokens(body.encode()))
    first, second = await _replayed(cache)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (len(first.block_hashes), len(second.block_hashes)) == (2, 2)
    assert second.parent_block_hash == first.block_hashes[-1]


async def test_streamed_requests_are_announced_a_step_at_a_time(caches: list[MockKvCache]) -> None:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(str(caches[0].sources["0"]["endpoint"]))
        await monitor.recv_multipart()
        while not await socket.poll(20):  # a publisher hears of a new subscriber a little later than of its connection
            caches[0].computed(50)
            caches[0].computed(50)
        batch = decode_batch(decode_frames(await socket.recv_multipart()).payload)
        assert len(batch.events) == 2 * 4
        socket.disable_monitor()
        monitor.close()
    finally:
        context.destroy(linger=0)


async def test_a_chat_that_does_not_stream_has_its_true_length(
    start_server: object, pacer: Pacer, caches: list[MockKvCache], tokenizer: MockTokenizer
) -> None:
    side = KvSide.of(caches[0], tokenizer, "/models/mock")
    port = await start_server(lambda: MockConnection(pacer, side))  # type: ignore[operator]
    body = {"model": MODEL, "messages": [{"role": "user", "content": " ".join(["time"] * 30)}], "max_tokens": 1}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/v1/models") as answer:
            assert (await answer.json())["data"][0]["root"] == "/models/mock"
        async with session.get("/kv_event_sources") as answer:
            assert (await answer.json())["0"]["replay_endpoint"].startswith("tcp://127.0.0.1:")
        async with session.post("/v1/chat/completions", json=body) as answer:
            assert (await answer.json())["usage"]["prompt_tokens"] == 32
    (event,) = await _replayed(caches[0])
    assert isinstance(event, BlockStored)
    assert len(event.block_hashes) == 2


def _status(**changes: object) -> kv_status.Status:
    fields: dict[str, object] = {"state": "complete", "reason": "", "confidence": 1.0, "blocks": {"gpu": 9}} | changes
    worker = kv_status.Worker("a/0", 1, 64, None, kv_status.Kv(**fields))  # type: ignore[arg-type]
    return kv_status.Status("auto", [worker])


def test_only_complete_feeds_without_a_fault_count_as_exact() -> None:
    assert kv_status.fault(_status(), 1) is None
    assert kv_status.fault(_status(), 2) == "1 of 2 workers have joined"
    for doubt in ({"state": "partial"}, {"confidence": 0.0}, {"blocks": {}}):
        assert "a/0: KV events" in (kv_status.fault(_status(**doubt), 1) or "")


def test_a_run_without_predictions_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_status, "read", lambda port: _status())
    assert kv_status.check_used(1, 1) == 64
    idle = _status()
    idle.workers[0].predicted_cached_tokens = 0
    monkeypatch.setattr(kv_status, "read", lambda port: idle)
    with pytest.raises(BenchmarkError, match="no cached token was ever predicted"):
        kv_status.check_used(1, 1)
