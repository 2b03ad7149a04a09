"""Faults on top of faults, odd engines and slow clients: a stream ends, with nothing twice and nothing missing."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import WorkerDraining
from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import worker_id
from pointsman.edge.configuration.control_plane import Timeouts as ConfiguredTimeouts
from pointsman.edge.serving.failover import FailoverSettings
from pointsman.edge.serving.migration import migration
from pointsman.edge.serving.migration.ask import EngineAskError
from pointsman.edge.serving.migration.sse_events import write_event
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.wire.http1_client import UpstreamConnectError
from support.scripted_fleet import DONE, JSON, SSE, Engine, Fleet
from support.sim_fleet import SimFleet
from support.told_streams import hear
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scripted import chatted, scripted

GREEDY = {"temperature": 0}
GENEROUS = Timeouts.of(ConfiguredTimeouts())


def told(text: str, **fields: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return write_event({"id": "c", "created": 1, "model": "m", "choices": [choice], **fields})


END = write_event(
    {"id": "c", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
)


async def test_engines_that_refuse_for_ever_do_not_keep_a_stream_for_ever(fleet: Fleet) -> None:
    asked = 0

    async def answer(incoming, responder) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            responder.send(503, JSON, b"{}")
            return
        responder.start(200, SSE)
        responder.write(told("one"))
        await asyncio.sleep(0.02)
        responder.abort()

    await fleet.engine("a", answer=answer)
    await fleet.open(heartbeat_s=60.0, failover=FailoverSettings(migration_wait_s=0.6))
    heard = hear((await asyncio.wait_for(fleet.chat(**GREEDY), 20)).body)
    assert heard.errors
    fleet.at_rest()


def test_the_total_time_is_over_for_who_waits_for_a_worker_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        async def answer(incoming, responder) -> None:
            responder.start(200, SSE)
            responder.write(told("one"))
            await asyncio.sleep(0.02)
            responder.abort()
            frontend.emit(WorkerDraining(worker_id("a"), 0.0, "test"))

        limit = replace(GENEROUS, total_s=0.5)
        async with scripted(loop, Engine("a", answer=answer), heartbeat_s=60.0, timeouts=limit) as frontend:
            began_s = loop.time()
            heard = hear((await chatted(frontend, **GREEDY)).body)
            assert "total time is over" in heard.errors[0]
            assert loop.time() - began_s == pytest.approx(0.5, abs=0.1)

    run_virtual(main)


@pytest.mark.parametrize("created", [1.5, "now"])
async def test_a_long_stream_whose_head_is_odd_is_no_worse_for_being_kept(fleet: Fleet, created: object) -> None:
    sent = [told("x" * 1000, created=created) for _ in range(60)] + [END, DONE]

    async def answer(incoming, responder) -> None:
        responder.start(200, SSE)
        for event in sent:
            responder.write(event)
            await asyncio.sleep(0)
        responder.finish()

    await fleet.engine("a", answer=answer)
    await fleet.open()
    assert (await fleet.chat(**GREEDY)).body == b"".join(sent)


@pytest.mark.parametrize(
    "odd",
    [
        write_event({"choices": [{"index": 0, "delta": {"content": ["parts"]}}]}),
        write_event(
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": {}}}]}}]}
        ),
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}\n\n',
    ],
)
async def test_what_cannot_be_read_is_never_said_twice(fleet: Fleet, odd: bytes) -> None:
    async def answer(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(told("one") + odd)
        if sum(len(engine.requests) for engine in fleet.engines) > 1:
            responder.write(told(" two") + END + DONE)
            responder.finish()
            return
        await asyncio.sleep(0.02)
        responder.abort()

    for name in "ab":
        await fleet.engine(name, answer=answer)
    await fleet.open()
    body = (await fleet.chat(**GREEDY)).body
    assert body.count(odd[30:-4]) == 1
    assert b"could not be read" in body


async def test_a_stream_that_breaks_in_the_end_is_counted_where_it_began_to_move(fleet: Fleet) -> None:
    async def answer(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(told("one"))
        if sum(len(engine.requests) for engine in fleet.engines) > 1:
            responder.write(told(" two") + b'data: {"choices":[{"index":0,"delta":{"content":7}}]}\n\n')
        await asyncio.sleep(0.02)
        responder.abort()

    for name in "ab":
        await fleet.engine(name, answer=answer)
    frontend = await fleet.open(heartbeat_s=60.0)
    assert b"could not be read" in (await fleet.chat(**GREEDY)).body
    assert frontend.traffic.migrations == {("replay", "begun"): 1, ("replay", "broken"): 1}
    fleet.at_rest()


async def test_a_client_may_leave_while_its_stream_waits_for_a_worker(fleet: Fleet) -> None:
    async def answer(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(told("one"))
        await asyncio.sleep(0.02)
        frontend.emit(WorkerDraining(worker, 0.0, "test"))
        responder.abort()

    await fleet.engine("a", answer=answer)
    frontend = await fleet.open(heartbeat_s=60.0)
    [worker] = [worker.id for worker in frontend.ledger.snapshot().workers]
    asking = asyncio.create_task(fleet.chat(**GREEDY))
    await fleet.until(lambda: bool(frontend.traffic.migrations["replay", "begun"]))
    asking.cancel()
    await fleet.until(lambda: not frontend.dispatcher._running)
    assert frontend.ledger.snapshot().totals.cancelled == 1
    assert frontend.dispatcher.elsewhere._waiting == 0
    fleet.at_rest()


async def test_what_is_cut_while_it_connects_asks_nobody_else(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [await fleet.engine(name) for name in "ab"]
    frontend = await fleet.open(heartbeat_s=60.0)
    tried = 0

    async def connect(origin, **_):
        nonlocal tried
        tried += 1
        assert frontend.dispatcher.cut_all("the front end is stopping") == 1
        raise UpstreamConnectError("no answer")

    monkeypatch.setattr(frontend.dispatcher._pool, "idle_connection", lambda origin: None)
    monkeypatch.setattr(frontend.dispatcher._pool, "connect", connect)
    answer = await fleet.chat()
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "stopping")
    assert tried == 1
    assert not any(engine.requests for engine in engines)
    fleet.at_rest()


async def test_a_slow_client_holds_up_the_next_engine_too(fleet: Fleet) -> None:
    blocks = 300
    written: list[int] = []

    async def answer(incoming, responder) -> None:
        flowing = asyncio.Event()
        flowing.set()
        responder.on_pause, responder.on_resume = flowing.clear, flowing.set
        responder.start(200, SSE)
        number = len(written)
        written.append(0)
        for _ in range(blocks):
            await flowing.wait()
            responder.write(told("x" * 100_000))
            written[number] += 1
        responder.write(END + DONE)
        responder.finish()

    for name in "ab":
        await fleet.engine(name, answer=answer)
    frontend = await fleet.open(heartbeat_s=60.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(frontend.url.rsplit(":", 1)[1]), limit=4096)
    data = json.dumps({"model": "m", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": "x"}]})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(data) + data.encode())
    await reader.read(1)
    await fleet.until(lambda: any(attempt.paused for _, attempt in frontend.dispatcher.streams()), 10)
    [(worker, _)] = frontend.dispatcher.streams()
    assert frontend.dispatcher.migrate_from(worker, "its engine drains") == 1
    await fleet.until(lambda: len(written) == 2 and written[1] > 0)
    await asyncio.sleep(0.5)
    assert written[1] < blocks, "its client has not read, so what it writes would be kept here"
    assert (await reader.read(-1)).count(b"xxxxxxxxxx") == blocks * 10_000
    writer.close()
    await writer.wait_closed()
    fleet.at_rest()


async def test_an_error_that_is_the_requests_own_is_no_fault_of_its_worker(fleet: Fleet) -> None:
    own = write_event({"error": {"message": "too long", "code": 400}})

    async def answer(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(told("one") + own + DONE)
        responder.finish()

    await fleet.engine("a", answer=answer)
    frontend = await fleet.open(heartbeat_s=60.0)
    for body in ({}, {"n": 2}):
        assert own in (await fleet.chat(**body)).body
    assert not frontend.ledger.snapshot().workers[0].faults.counts
    assert frontend.traffic.stream_errors["error_event"] == 2


def text_and_ids(body: bytes) -> tuple[str, list[int]]:
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event and b"[DONE]" not in event]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    text = "".join(choice["text"] for choice in choices)
    return text, [token for choice in choices for token in choice.get("token_ids") or ()]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LATE, Fault.SERVER_ERROR])
async def test_an_engine_that_fails_while_it_is_asked_is_passed_over(
    sims: SimFleet, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """It may be sampled, so nothing but token ids will do; and the request never got there."""
    ask, left = migration.ask_engine, 1

    async def failing(*question):
        nonlocal left
        if left:
            left -= 1
            raise EngineAskError("it broke off", fault)
        return await ask(*question)

    monkeypatch.setattr(migration, "ask_engine", failing)
    frontend = await sims.open(engines=3)
    body = {"prompt": "once upon", "max_tokens": 20, "temperature": 0.7, "stop": ["never said"]}
    undisturbed = await sims.ask("/v1/completions", body)
    await sims.fault(0, 1, 2, reset_after_tokens=7, requests=1)
    answer = await sims.ask("/v1/completions", body)
    assert not left
    assert b"error" not in answer.body
    assert text_and_ids(answer.body) == text_and_ids(undisturbed.body)
    assert frontend.traffic.migrations["token_ids", "finished"] == 1
    sims.at_rest()


@pytest.mark.parametrize("cut", range(2, 9))
async def test_a_client_that_wants_ids_gets_none_twice(sims: SimFleet, cut: int) -> None:
    """Its engine told ids of tokens whose text it held back, since a stop string may begin in it."""
    await sims.open()
    body: dict[str, object] = {"prompt": "once upon", "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    words = text_and_ids((await sims.ask("/v1/completions", body)).body)[0].split()
    body["stop"] = [f"{words[4]} {words[5]} never"]
    undisturbed = await sims.ask("/v1/completions", body)
    await sims.fault(0, 1, reset_after_tokens=cut, requests=1)
    await sims.fault(1)
    for _ in range(2):
        assert text_and_ids((await sims.ask("/v1/completions", body)).body) == text_and_ids(undisturbed.body)
    sims.at_rest()


def test_what_is_kept_of_a_long_stream_is_small() -> None:
    transcript = Transcript()
    events = [
        write_event({"choices": [{"index": 0, "delta": {"content": f"w{n:05}"}, "token_ids": [n]}]})
        for n in range(40_000)
    ]
    tracemalloc.start()
    for event in events:
        transcript.add(event)
    kept_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept_bytes < 40_000 * 12 + 200_000
    assert transcript.said.text(("content", 0)) == "".join(f"w{n:05}" for n in range(40_000))
    assert transcript.said.ids.tolist() == list(range(40_000))
