"""What reaches the engine, and what reaches the client."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import HealthRead, WorkerJoined
from pointsman.core.model.worker import worker_id
from support.scripted_fleet import DONE, JSON, SSE, Fleet, delta, stream_three, usage_event

TEXTS = delta("one") + delta(" zwei") + delta(" três")
PLAIN = b'{"id":"c1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}'


class TestBodyToTheEngine:
    async def test_unknown_fields_big_integers_and_key_order_survive(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open()
        body = (
            b'{"zeta": 12345678901234567890123, "model":"m",\n "x":{"y":[1.0,1e400]}, "messages":[{"role":"user",'
            b'"content":"h\xc3\xa9\\u00e9"}], "alpha":null}'
        )
        assert (await fleet.ask("/v1/chat/completions", body)).status == 200
        assert engine.requests[0].body == body

    async def test_a_stream_is_asked_for_its_usage_and_nothing_else_changes(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open()
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"n":1}'
        await fleet.ask("/v1/chat/completions", body)
        sent = engine.requests[0].body
        assert json.loads(sent) == json.loads(body) | {"stream_options": {"include_usage": True}}
        assert sent.endswith(body[1:])

    async def test_a_client_that_asks_for_usage_itself_has_its_body_untouched(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open()
        await fleet.chat(stream_options={"include_usage": True})
        assert json.loads(engine.requests[0].body)["stream_options"] == {"include_usage": True}

    async def test_secrets_and_debug_headers_stay_here_and_the_engine_gets_its_own_key(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open()
        fleet.frontend.links.joined(fleet.frontend.ledger.snapshot().workers[0].spec, "engine-key")
        headers = [
            (b"authorization", b"Bearer client-key"),
            (b"cookie", b"session=1"),
            (b"accept-encoding", b"gzip"),
            (b"x-pointsman-worker", b"a/0"),
            (b"connection", b"keep-alive, x-hop"),
            (b"x-hop", b"1"),
            (b"traceparent", b"00-1-2-01"),
            (b"x-request-id", b"mine"),
        ]
        answer = await fleet.chat(headers)
        sent = dict(engine.requests[0].headers)
        assert sent[b"authorization"] == b"Bearer engine-key"
        assert sent[b"traceparent"] == b"00-1-2-01"
        assert sent[b"x-request-id"] == b"mine" == answer.header(b"x-request-id")
        assert not {b"cookie", b"accept-encoding", b"x-pointsman-worker", b"x-hop"} & set(sent)

    async def test_the_rank_of_a_data_parallel_engine_is_chosen_by_its_header(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        frontend = await fleet.open(heartbeat_s=60.0)
        spec = frontend.ledger.snapshot().workers[0].spec
        for rank in (0, 1):
            ranked = replace(spec, id=worker_id("a", rank), rank=rank, rank_header="X-Data-Parallel-Rank")
            frontend.emit(WorkerJoined(ranked, 0.0))
            frontend.emit(HealthRead(ranked.id, 0.0, True, True, "ok"))
        for rank in (0, 1):
            answer = await fleet.chat([(b"x-data-parallel-rank", b"7")])
            sent = [value for name, value in engine.requests[-1].headers if name == b"x-data-parallel-rank"]
            assert sent == [b"%d" % rank]
            assert answer.header(b"x-pointsman-worker") == b"a/%d" % rank

    async def test_an_engine_that_knows_no_stream_options_gets_none(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        frontend = await fleet.open(heartbeat_s=60.0)
        spec = replace(frontend.ledger.snapshot().workers[0].spec, stream_usage=False)
        frontend.emit(WorkerJoined(spec, 0.0))
        frontend.emit(HealthRead(spec.id, 0.0, True, True, "ok"))
        assert (await fleet.chat()).body == TEXTS + DONE
        assert b"stream_options" not in engine.requests[0].body


class TestStreamToTheClient:
    async def test_usage_is_accounted_and_kept_from_a_client_that_did_not_ask(self, fleet: Fleet) -> None:
        await fleet.engine("a")
        await fleet.open()
        answer = await fleet.chat()
        assert answer.body == TEXTS + DONE
        totals = fleet.frontend.ledger.snapshot().totals
        assert (totals.prompt_tokens, totals.output_tokens, totals.reported_cached_tokens) == (10, 3, 4)

    async def test_usage_passes_for_a_client_that_asked(self, fleet: Fleet) -> None:
        await fleet.engine("a")
        await fleet.open()
        answer = await fleet.chat(stream_options={"include_usage": True})
        assert answer.body == TEXTS + usage_event() + DONE
        assert fleet.frontend.ledger.snapshot().totals.output_tokens == 3

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
    async def test_any_split_of_the_engines_bytes_gives_the_same_answer(self, fleet: Fleet, size: int) -> None:
        whole = TEXTS + usage_event() + DONE

        async def dribble(incoming, responder) -> None:
            responder.start(200, SSE)
            for at in range(0, len(whole), size):
                responder.write(whole[at : at + size])
                await asyncio.sleep(0)
            responder.finish()

        await fleet.engine("a", answer=dribble)
        await fleet.open()
        assert (await fleet.chat()).body == TEXTS + DONE
        assert fleet.frontend.ledger.snapshot().totals.prompt_tokens == 10

    async def test_who_answered_is_named_and_other_headers_are_the_engines(self, fleet: Fleet) -> None:
        async def answer(incoming, responder) -> None:
            responder.send(200, [*JSON, (b"x-engine", b"1"), (b"openai-version", b"2020")], PLAIN)

        await fleet.engine("a", answer=answer)
        await fleet.open()
        got = await fleet.chat(stream=False)
        assert got.body == PLAIN
        assert got.header(b"content-type") == b"application/json"
        assert got.header(b"x-engine") == b"1"
        assert got.header(b"openai-version") == b"2020"
        assert got.header(b"x-pointsman-worker") == b"a/0"
        assert (
            got.header(
                b"x-request-id",
            )
            is not None
        )
        assert fleet.frontend.ledger.snapshot().totals.prompt_tokens == 7

    @pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
    async def test_the_engines_status_and_error_body_are_kept(self, fleet: Fleet, status: int) -> None:
        body = b'{"object":"error","message":"This model\'s maximum context length is 10"}'

        async def answer(incoming, responder) -> None:
            responder.send(status, [*JSON, (b"retry-after", b"7")], body)

        await fleet.engine("a", answer=answer)
        await fleet.open()
        got = await fleet.chat()
        assert (got.status, got.body, got.header(b"retry-after")) == (status, body, b"7")
        assert fleet.frontend.traffic.responses["/v1/chat/completions", status] == 1
        fleet.at_rest()

    async def test_the_first_token_reaches_the_ledger_before_the_end(self, fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def answer(incoming, responder) -> None:
            responder.start(200, SSE)
            responder.write(delta("one"))
            await go_on.wait()
            responder.write(DONE)
            responder.finish()

        await fleet.engine("a", answer=answer)
        await fleet.open()
        asking = asyncio.create_task(fleet.chat(messages=[{"role": "user", "content": "word " * 200}]))
        worker = lambda: fleet.frontend.ledger.snapshot().workers[0]  # noqa: E731
        await fleet.until(lambda: worker().kv_tokens > 0 and worker().prefill_tokens == 0)
        assert worker().running == 1
        go_on.set()
        await asking
        fleet.at_rest()

    @pytest.mark.parametrize("at_once", [1, 100])
    async def test_long_streams_grow_the_kv_count_while_they_run(self, fleet: Fleet, at_once: int) -> None:
        go_on = asyncio.Event()

        async def answer(incoming, responder) -> None:
            responder.start(200, SSE)
            for _ in range(0, 100, at_once):
                responder.write(delta("x") * at_once)
            await go_on.wait()
            responder.finish()

        await fleet.engine("a", answer=answer)
        await fleet.open()
        asking = asyncio.create_task(fleet.chat())
        await fleet.until(lambda: fleet.frontend.ledger.snapshot().workers[0].kv_tokens >= 96)
        go_on.set()
        await asking
        fleet.at_rest()


async def test_a_slow_client_slows_the_engine_and_memory_stays_bounded(fleet: Fleet) -> None:
    block = delta("x" * 60_000)
    sent = 0

    async def flood(incoming, responder) -> None:
        nonlocal sent
        paused = asyncio.Event()
        flowing = asyncio.Event()
        flowing.set()
        responder.on_pause = lambda: (flowing.clear(), paused.set())
        responder.on_resume = flowing.set
        responder.start(200, SSE)
        for _ in range(400):
            await flowing.wait()
            responder.write(block)
            sent += len(block)
            await asyncio.sleep(0)
        responder.finish()

    await fleet.engine("a", answer=flood)
    await fleet.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(fleet.frontend.url.rsplit(":", 1)[1]), limit=1024)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    await fleet.until(lambda: sent > 0)
    before = -1
    while sent != before:  # until nothing moves any more: every buffer on the way is full
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 16 * 2**20 < 400 * len(block)
    received = 0
    while received < 400 * len(block):
        got = len(await reader.read(2**20))
        assert got, "the stream ended early"
        received += got
    writer.close()
    await writer.wait_closed()
    await fleet.until(lambda: fleet.frontend.ledger.in_flight == 0)
    fleet.at_rest()


async def test_passed_through_apis(fleet: Fleet) -> None:
    async def answer(incoming, responder) -> None:
        if incoming.path == "/v1/embeddings":
            responder.send(200, JSON, b'{"object":"list","data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}')
        else:
            await stream_three(incoming, responder)

    engine = await fleet.engine("a", answer=answer)
    await fleet.open()
    assert (await fleet.ask("/v1/embeddings", {"model": "m", "input": ["x", "y"]})).status == 200
    assert fleet.frontend.ledger.snapshot().totals.prompt_tokens == 5
    assert fleet.frontend.traffic.duration_s.count == 1
    assert fleet.frontend.traffic.ttft_s.count == 0, "a plain answer has no first token to speak of"
    body = {"model": "m", "input": "hi", "stream": True}
    await fleet.ask("/v1/responses", body)
    assert json.loads(engine.requests[1].body) == body
    assert [r.path for r in engine.requests] == ["/v1/embeddings", "/v1/responses"]
    fleet.at_rest()


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
async def test_every_form_of_a_completions_prompt(fleet: Fleet, prompt: object) -> None:
    engine = await fleet.engine("a")
    await fleet.open()
    assert (await fleet.ask("/v1/completions", {"model": "m", "prompt": prompt, "stream": True})).status == 200
    assert json.loads(engine.requests[0].body)["prompt"] == prompt
