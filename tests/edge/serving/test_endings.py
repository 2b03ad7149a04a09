"""How requests end when something goes wrong: aborts, lost engines, time-outs. Counters are zero after each."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import HealthRead, MetricsRead, WorkerJoined
from pointsman.edge.configuration.control_plane import Timeouts as ConfiguredTimeouts
from pointsman.edge.serving.relay import MAX_BODY_HELD_BYTES
from pointsman.edge.serving.timeouts import Timeouts
from support.scripted_fleet import DONE, JSON, SSE, Engine, Fleet, chunk, delta, hang, stream_three
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scripted import chatted, scripted

GENEROUS = Timeouts.of(ConfiguredTimeouts())


async def send_and_leave(fleet: Fleet, when, body: dict | None = None) -> None:
    """Ask over a raw socket, wait until `when()` holds, then close the connection."""
    port = int(fleet.frontend.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]} | (body or {})
    data = json.dumps(request).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))
    await fleet.until(when)
    writer.close()
    await writer.wait_closed()


class TestClientLeaves:
    @pytest.mark.parametrize("body", [{}, {"stream": False}, {"n": 2}])
    async def test_before_the_first_byte(self, fleet: Fleet, body: dict) -> None:
        engine = await fleet.engine("a", answer=hang)
        await fleet.open()
        await send_and_leave(fleet, lambda: engine.running == 1, body)
        await asyncio.wait_for(engine.abort_seen.wait(), 30)
        await fleet.until(lambda: fleet.frontend.ledger.in_flight == 0)
        assert fleet.frontend.ledger.snapshot().totals.cancelled == 1
        assert fleet.frontend.traffic.responses["/v1/chat/completions", 499] == 1
        fleet.at_rest()

    async def test_in_the_middle_of_a_stream(self, fleet: Fleet) -> None:
        async def endless(incoming, responder) -> None:
            responder.start(200, SSE)
            while True:
                responder.write(delta("x"))
                await asyncio.sleep(0.005)

        engine = await fleet.engine("a", answer=endless)
        await fleet.open()
        await send_and_leave(fleet, lambda: fleet.frontend.ledger.snapshot().workers[0].kv_tokens > 32)
        await asyncio.wait_for(engine.abort_seen.wait(), 30)
        await fleet.until(lambda: fleet.frontend.ledger.in_flight == 0)
        fleet.at_rest()

    async def test_only_its_own_request_is_aborted(self, fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def wait_then_answer(incoming, responder) -> None:
            await go_on.wait()
            await stream_three(incoming, responder)

        engine = await fleet.engine("a", answer=wait_then_answer)
        await fleet.open()
        stays = asyncio.create_task(fleet.chat(headers=[(b"x-request-id", b"abcd")]))
        await fleet.until(lambda: engine.running == 1)
        await send_and_leave(fleet, lambda: engine.running == 2)
        await asyncio.wait_for(engine.abort_seen.wait(), 30)
        go_on.set()
        assert (await stays).status == 200
        assert engine.aborted == 1
        fleet.at_rest()

    async def test_while_it_waits_for_a_connection(self, fleet: Fleet) -> None:
        await fleet.engine("a")
        await fleet.open()
        entered, released = asyncio.Event(), asyncio.Event()

        async def slow_connect(origin, *, fresh=False):
            entered.set()
            await released.wait()

        fleet.frontend.pool.connect = slow_connect  # type: ignore[method-assign]
        fleet.frontend.pool.idle_connection = lambda origin: None  # type: ignore[method-assign]
        await send_and_leave(fleet, entered.is_set)
        await fleet.until(lambda: fleet.frontend.ledger.in_flight == 0)
        assert fleet.frontend.ledger.snapshot().totals.cancelled == 1
        fleet.at_rest()


class TestEngineIsLost:
    async def test_a_dead_engine_is_passed_over_and_then_excluded(self, fleet: Fleet) -> None:
        dead = await fleet.engine("dead")
        await fleet.engine("alive")
        await fleet.open(heartbeat_s=60.0)
        await dead.close()
        workers = [(await fleet.chat()).header(b"x-pointsman-worker") for _ in range(3)]
        assert workers == [b"alive/0"] * 3
        snapshot = fleet.frontend.ledger.snapshot()
        assert [w.state for w in snapshot.workers] == ["unreachable", "ready"]
        assert snapshot.totals.attempts_failed == 1
        assert fleet.frontend.traffic.retries["unreachable"] == 1
        fleet.at_rest()

    async def test_nobody_reachable_is_a_503_with_every_reason(self, fleet: Fleet) -> None:
        first, second = await fleet.engine("a"), await fleet.engine("b")
        await fleet.open(heartbeat_s=60.0)
        await first.close()
        await second.close()
        answer = await fleet.chat()
        assert answer.status == 503
        assert answer.header(b"retry-after") == b"1"
        error = json.loads(answer.body)["error"]
        assert error["code"] == "no_engine_available"
        assert "a/0: unreachable" in error["message"]
        assert "b/0: unreachable" in error["message"]
        assert fleet.frontend.ledger.snapshot().totals.failed == 1
        fleet.at_rest()

    async def test_an_engine_that_comes_back_is_used_again(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open(heartbeat_s=0.25)
        port = engine.port
        await engine.close()
        assert (await fleet.chat()).status == 503
        await engine.start(port)
        await fleet.until(lambda: fleet.frontend.ledger.snapshot().workers[0].usable)
        assert (await fleet.chat()).status == 200

    async def test_cut_off_before_the_first_byte_by_two_engines_is_a_502_and_not_sent_to_a_third(
        self, fleet: Fleet
    ) -> None:
        async def cut(incoming, responder) -> None:
            responder.abort()

        engines = [await fleet.engine(name, answer=cut) for name in "abc"]
        await fleet.open()
        answer = await fleet.chat()
        assert answer.status == 502
        message = json.loads(answer.body)["error"]["message"]
        assert "broke off before answering" in message
        assert "may be what they fail of" in message
        assert sum(len(e.requests) for e in engines) == 2
        fleet.at_rest()

    async def test_cut_off_in_a_stream_ends_with_an_error_event_and_without_done(self, fleet: Fleet) -> None:
        async def cut(incoming, responder) -> None:
            responder.start(200, SSE)
            responder.write(delta("one"))
            await asyncio.sleep(0.02)
            responder.abort()

        await fleet.engine("a", answer=cut)
        await fleet.open()
        answer = await fleet.chat()
        assert answer.body.startswith(delta("one"))
        last = json.loads(answer.body[len(delta("one")) :].removeprefix(b"data: "))
        assert last["error"]["code"] == "stream_broken"
        assert b"[DONE]" not in answer.body
        assert fleet.frontend.traffic.stream_errors["engine_lost"] == 1
        assert fleet.frontend.ledger.snapshot().totals.failed == 1
        fleet.at_rest()

    async def test_half_an_event_is_never_followed_by_the_error_event_on_the_same_line(self, fleet: Fleet) -> None:
        async def cut(incoming, responder) -> None:
            responder.start(200, SSE)
            responder.write(delta("one") + delta("two")[:20])
            await asyncio.sleep(0.02)
            responder.abort()

        await fleet.engine("a", answer=cut)
        await fleet.open()
        for options in ({}, {"stream_options": {"include_usage": True}}):
            answer = await fleet.chat(**options)
            events = [e for e in answer.body.split(b"\n\n") if e.strip()]
            assert json.loads(events[-1].split(b"data: ")[-1])["error"]["code"] == "stream_broken"
            assert events[-1].startswith(b"data: ")

    async def test_a_request_that_may_have_been_read_is_sent_again_once(self, fleet: Fleet) -> None:
        """Also on a kept connection: it could be the request that kills engines."""

        async def die_later(incoming, responder) -> None:
            await asyncio.sleep(0.1)
            responder.abort()

        engines = [await fleet.engine(name) for name in "abc"]
        await fleet.open(heartbeat_s=60.0)
        for _ in engines:
            assert (await fleet.chat()).status == 200
        for engine in engines:
            engine.answer = die_later
        answer = await fleet.chat()
        assert answer.status == 502
        assert sum(len(engine.requests) for engine in engines) == 5
        fleet.at_rest()

    @pytest.mark.parametrize("status", [500, 503])
    async def test_an_engine_that_answers_with_its_own_failure_has_failed(self, fleet: Fleet, status: int) -> None:
        async def fail(incoming, responder) -> None:
            responder.send(status, JSON, b"{}")

        await fleet.engine("a", answer=fail)
        await fleet.open(policy="prefix")
        answer = await fleet.chat(messages=[{"role": "user", "content": "long " * 200}])
        assert answer.status == status
        worker = fleet.frontend.ledger.snapshot().workers[0]
        assert (worker.totals.failed, worker.totals.finished, worker.text_blocks) == (1, 0, 0)
        fleet.at_rest()

    async def test_an_engine_that_refuses_a_request_has_not_failed(self, fleet: Fleet) -> None:
        async def refuse(incoming, responder) -> None:
            responder.send(400, JSON, b"{}")

        await fleet.engine("a", answer=refuse)
        await fleet.open(policy="prefix")
        await fleet.chat(messages=[{"role": "user", "content": "long " * 200}])
        worker = fleet.frontend.ledger.snapshot().workers[0]
        assert (worker.totals.refused, worker.totals.failed, worker.text_blocks) == (1, 0, 0)
        fleet.at_rest()

    @pytest.mark.parametrize(
        ("tail", "defect", "says"),
        [
            (b'data: {"error": {"message": "out of memory"}}\n\n' + DONE, "error_event", "out of memory"),
            (chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "abort"}]) + DONE, "error_event", "aborted"),
            (b"", "no_done", None),
        ],
    )
    async def test_streams_that_end_wrongly_are_counted(
        self, fleet: Fleet, caplog: pytest.LogCaptureFixture, tail: bytes, defect: str, says: str | None
    ) -> None:
        async def answer(incoming, responder) -> None:
            responder.start(200, SSE)
            responder.write(delta("one") + tail)
            responder.finish()

        await fleet.engine("a", answer=answer)
        await fleet.open()
        body = (await fleet.chat()).body
        assert body.startswith(delta("one"))
        rest = body.removeprefix(delta("one"))
        if says is None:
            assert not rest
        else:
            error = json.loads(rest.removeprefix(b"data: "))["error"]
            assert error["code"] == "stream_broken"
            assert says in error["message"]
            assert "sampled" in error["message"]
        assert "out of memory" not in caplog.text, "it may hold a prompt"
        assert dict(fleet.frontend.traffic.stream_errors) == {defect: 1}
        assert fleet.frontend.ledger.snapshot().totals.failed == (says is not None)
        fleet.at_rest()

    async def test_a_stale_idle_connection_is_no_error(self, fleet: Fleet) -> None:
        engine = await fleet.engine("a")
        await fleet.open(heartbeat_s=60.0)
        assert (await fleet.chat()).status == 200
        port = engine.port
        await engine.close()
        await engine.start(port)
        answers = [await fleet.chat() for _ in range(3)]
        assert [a.status for a in answers] == [200] * 3
        fleet.at_rest()


def test_no_first_byte() -> None:
    async def main(loop: VirtualLoop) -> None:
        engines = [Engine(name, answer=hang) for name in "ab"]
        async with scripted(loop, *engines, timeouts=replace(GENEROUS, first_byte_s=0.1)) as frontend:
            began_s = loop.time()
            answer = await chatted(frontend)
            assert loop.time() - began_s == pytest.approx(0.1, abs=0.05)
            assert answer.status == 504
            assert "no answer within 0.1 s" in answer.error["message"]
        assert sum(engine.aborted for engine in engines) == 1
        assert sum(len(engine.requests) for engine in engines) == 1, "an accepted request must not be sent again"

    run_virtual(main)


def test_silence_in_a_stream_counts_from_the_last_byte() -> None:
    async def slower_and_slower(incoming, responder) -> None:
        responder.start(200, SSE)
        for pause in (0.4, 0.4, 0.4, 10):
            responder.write(delta("x"))
            await asyncio.sleep(pause)

    async def main(loop: VirtualLoop) -> None:
        engine = Engine("a", answer=slower_and_slower)
        async with scripted(loop, engine, timeouts=replace(GENEROUS, idle_s=0.5)) as frontend:
            began_s = loop.time()
            answer = await chatted(frontend)
            assert loop.time() - began_s == pytest.approx(1.7, abs=0.1)
            assert answer.body.count(b'"content"') == 4
            assert b"no byte for 0.5 s" in answer.body
            assert frontend.traffic.stream_errors["timeout"] == 1
        assert engine.aborted == 1

    run_virtual(main)


@pytest.mark.parametrize("streams", [True, False])
def test_total_time(streams: bool) -> None:
    async def dribble(incoming, responder) -> None:
        if not streams:
            await asyncio.sleep(10)
        responder.start(200, SSE)
        while True:
            responder.write(delta("x"))
            await asyncio.sleep(0.01)

    async def main(loop: VirtualLoop) -> None:
        engine = Engine("a", answer=dribble)
        async with scripted(loop, engine, timeouts=replace(GENEROUS, total_s=0.5)) as frontend:
            began_s = loop.time()
            answer = await chatted(frontend, stream=streams)
            assert loop.time() - began_s == pytest.approx(0.5, abs=0.1)
            assert answer.status == (200 if streams else 504)
            assert b"total time is over" in answer.body

    run_virtual(main)


async def test_a_client_that_reads_slowly_is_not_an_engine_that_is_late(fleet: Fleet) -> None:
    block = delta("x" * 100_000)

    async def flood(incoming, responder) -> None:
        flowing = asyncio.Event()
        flowing.set()
        responder.on_pause, responder.on_resume = flowing.clear, flowing.set
        responder.start(200, SSE)
        for _ in range(120):
            await flowing.wait()
            responder.write(block)
        responder.write(DONE)
        responder.finish()

    await fleet.engine("a", answer=flood)
    await fleet.open(timeouts=replace(GENEROUS, idle_s=0.3))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(fleet.frontend.url.rsplit(":", 1)[1]))
    data = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(data) + data)
    await reader.read(1)
    await asyncio.sleep(0.9)  # three idle limits during which nothing moves
    assert (await reader.read(-1)).rstrip().endswith(b"0")
    writer.close()
    await writer.wait_closed()
    assert not fleet.frontend.traffic.stream_errors
    assert fleet.frontend.ledger.snapshot().totals.finished == 1


class TestQueueThreshold:
    async def test_a_full_fleet_is_a_429(self, fleet: Fleet) -> None:
        await fleet.engine("a")
        frontend = await fleet.open(heartbeat_s=60.0)
        spec = frontend.ledger.snapshot().workers[0].spec
        frontend.emit(WorkerJoined(replace(spec, queue_depth_threshold=1), 0.0))
        frontend.emit(HealthRead(spec.id, 0.0, True, True, "ok"))
        frontend.emit(MetricsRead(spec.id, 0.0, running=4, waiting=1))
        answer = await fleet.chat()
        assert answer.status == 429
        assert json.loads(answer.body)["error"]["code"] == "engines_full"
        fleet.at_rest()


async def test_stopping_waits_for_what_runs_takes_nothing_new_and_says_so(fleet: Fleet) -> None:
    go_on = asyncio.Event()

    async def wait_then_answer(incoming, responder) -> None:
        responder.start(200, SSE)
        responder.write(delta("one"))
        await go_on.wait()
        responder.write(DONE)
        responder.finish()

    engine = await fleet.engine("a", answer=wait_then_answer)
    await fleet.open()
    asking = asyncio.create_task(fleet.chat())
    await fleet.until(lambda: engine.running == 1)
    closing = asyncio.create_task(fleet.frontend.close(grace_s=5))
    await asyncio.sleep(0)
    ready = await fleet.ask("/ready", method="GET")
    assert (ready.status, json.loads(ready.body)["status"]) == (503, "stopping")
    assert json.loads((await fleet.ask("/health", method="GET", admin=True)).body)["status"] == "stopping"
    refused = await fleet.chat()
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "stopping")
    assert not closing.done()
    go_on.set()
    assert (await asking).body.endswith(DONE)
    await asyncio.wait_for(closing, 30)
    assert len(engine.requests) == 1


async def test_stopping_cuts_what_outlives_the_grace(fleet: Fleet) -> None:
    engine = await fleet.engine("a", answer=hang)
    await fleet.open()
    asking = asyncio.create_task(fleet.chat(), name="asks a hanging engine")
    await fleet.until(lambda: engine.running == 1)
    await asyncio.wait_for(fleet.frontend.close(grace_s=0.05), 30)
    assert (await asking).status == 503
    await asyncio.wait_for(engine.abort_seen.wait(), 30)
    assert fleet.frontend.ledger.in_flight == 0


async def test_plain_answers_that_break_off_are_not_begun_unless_they_are_large(fleet: Fleet) -> None:
    size = 1000

    async def half(incoming, responder) -> None:
        responder.start(200, JSON, length=2 * size)
        responder.write(b'"' * size)
        if size > MAX_BODY_HELD_BYTES:  # aborting also drops what has not left yet
            running = fleet.frontend.dispatcher._running
            await fleet.until(lambda: any(exchange.responder.started for exchange in running.values()))
        responder.abort()

    await fleet.engine("a", answer=half)
    await fleet.open()
    assert (await fleet.chat(stream=False)).status == 502
    size = MAX_BODY_HELD_BYTES + 1
    with pytest.raises(Exception, match=r"closed|ended|reset"):
        await fleet.chat(stream=False)
    fleet.at_rest()
