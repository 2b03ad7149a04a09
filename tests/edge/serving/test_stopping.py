"""A front end that stops, and engines that drain, under requests that run: nothing is lost that could be answered."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.drains import Phase
from pointsman.edge.wire.http1_client import OwnShortageError
from support.scripted_fleet import DONE, SSE, Engine, Fleet, delta
from support.waiting import eventually


class Streams:
    """Answers that go on until a test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, incoming: Any, responder: Any) -> None:
        responder.start(200, SSE)
        responder.write(delta("one"))
        await self.go.wait()
        responder.write(DONE)
        responder.finish()


async def running(fleet: Fleet, engine: Engine, **fields: Any) -> asyncio.Task[Any]:
    before = engine.running
    task = asyncio.create_task(fleet.chat(**fields))
    await fleet.until(lambda: engine.running == before + 1)
    await fleet.until(lambda: fleet.frontend.ledger.snapshot().workers[0].prefill_tokens == 0)
    return task


async def test_told_to_stop_it_refuses_new_work_and_finishes_what_runs(fleet: Fleet) -> None:
    streams = Streams()
    engine = await fleet.engine("a", answer=streams)
    frontend = await fleet.open()
    stream = await running(fleet, engine)
    stopping = asyncio.create_task(frontend.close(600))
    await eventually(lambda: not frontend.shutdown.ready)
    ready = await fleet.ask("/ready", method="GET")
    refused = await fleet.chat()
    assert (ready.status, json.loads(ready.body)) == (503, {"status": "stopping"})
    assert (refused.status, refused.header(b"retry-after"), refused.header(b"connection")) == (503, b"1", b"close")
    assert frontend.status().phase == "refusing"
    streams.go.set()
    answer = await stream
    assert (answer.status, answer.body[-14:]) == (200, DONE)
    await asyncio.wait_for(stopping, 30)


async def test_within_the_lag_it_still_answers(fleet: Fleet) -> None:
    await fleet.engine("a")
    frontend = await fleet.open()
    stopping = asyncio.create_task(frontend.close(600, lag_s=300))
    await eventually(lambda: not frontend.shutdown.ready)
    assert (await fleet.ask("/ready", method="GET")).status == 503
    answer = await fleet.chat()
    assert (answer.status, answer.header(b"connection")) == (200, b"close")
    frontend.hurry()
    await asyncio.wait_for(stopping, 30)


@pytest.mark.parametrize("hurried", [False, True])
async def test_streams_that_do_not_end_in_time_end_with_an_error_event(fleet: Fleet, hurried: bool) -> None:
    engine = await fleet.engine("a", answer=Streams())
    frontend = await fleet.open()
    stream = await running(fleet, engine)
    stopping = asyncio.create_task(frontend.close(600 if hurried else 0.05))
    if hurried:
        await eventually(lambda: not frontend.shutdown.accepting)
        frontend.hurry()
    answer = await asyncio.wait_for(stream, 30)
    assert b'"code":"stream_broken"' in answer.body
    assert b"the front end is stopping" in answer.body
    assert b"[DONE]" not in answer.body
    await asyncio.wait_for(stopping, 30)
    assert frontend.ledger.in_flight == 0


async def test_replaced_it_serves_the_connections_that_it_has(fleet: Fleet) -> None:
    streams = Streams()
    engine = await fleet.engine("a", answer=streams)
    frontend = await fleet.open()
    await fleet.ask("/v1/models", method="GET")  # leaves a connection that is kept
    stream = await running(fleet, engine)
    second = await running(fleet, engine)
    retiring = asyncio.create_task(frontend.retire(600))
    await eventually(lambda: not frontend.shutdown.ready)
    streams.go.set()
    assert [(await one).status for one in (stream, second)] == [200, 200]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(frontend.url.rsplit(":", 1)[1]))
    late = await fleet.chat()  # on a connection that was there before
    assert late.status == 200
    await fleet.pool.close()
    await asyncio.wait_for(retiring, 30)


async def test_an_engine_drains_while_the_other_serves(fleet: Fleet) -> None:
    streams = Streams()
    first, second = await fleet.engine("a", answer=streams), await fleet.engine("b")
    frontend = await fleet.open()
    stream = asyncio.create_task(fleet.chat(headers=[]))
    await fleet.until(lambda: first.running == 1 or len(second.requests) == 1)
    if not first.running:  # round robin began with the other one
        await stream
        stream = await running(fleet, first)
    drain = frontend.drains.begin("a", "scaled in")
    asked = len(first.requests)
    for _ in range(4):
        assert (await fleet.chat()).header(b"x-pointsman-worker") == b"b/0"
    assert len(first.requests) == asked
    (report,) = frontend.status().drains
    assert (report.engine, report.phase, report.in_flight) == ("a", "finishing", 1)
    assert report.next_in_s == pytest.approx(600, abs=30)
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    assert 'pointsman_drains{phase="finishing"} 1.0' in metrics
    streams.go.set()
    assert (await stream).body.endswith(DONE)
    frontend.drains.look()
    assert drain.phase is Phase.DRAINED
    frontend.drains.resume("a")
    workers = {(await fleet.chat()).header(b"x-pointsman-worker") for _ in range(4)}
    assert workers == {b"a/0", b"b/0"}
    fleet.at_rest()


async def test_with_all_engines_of_a_model_draining_clients_hear_why(fleet: Fleet) -> None:
    for name in ("a", "b"):
        await fleet.engine(name)
    frontend = await fleet.open()
    for name in ("a", "b"):
        frontend.drains.begin(name, "maintenance")
    answer = await fleet.chat()
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")
    message = json.loads(answer.body)["error"]["message"]
    assert "a/0: draining" in message
    assert "b/0: draining" in message
    assert (await fleet.ask("/ready", method="GET")).status == 503


async def test_what_can_not_move_is_cut_with_an_error_event(fleet: Fleet) -> None:
    engine = await fleet.engine("a", answer=Streams())
    frontend = await fleet.open(drain_cut_after_s=0.0)
    stream = await running(fleet, engine)
    frontend.drains.begin("a", "gone at once", grace_s=0)
    frontend.drains.look()
    answer = await asyncio.wait_for(stream, 30)
    assert b"stream_broken" in answer.body
    assert b"gone at once" in answer.body
    await fleet.until(lambda: frontend.ledger.in_flight == 0)
    fleet.at_rest()


async def test_without_descriptors_clients_get_503_and_the_engine_is_not_blamed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.engine("a")
    frontend = await fleet.open()

    async def no_room(*args: object, **options: object) -> None:
        raise OwnShortageError("can't connect to a: too many open files, which is this front end's fault")

    with monkeypatch.context() as patch:
        patch.setattr(frontend.pool, "connect", no_room)
        answer = await fleet.chat()
    assert (answer.status, answer.header(b"retry-after")) == (503, b"1")
    assert "this front end's fault" in json.loads(answer.body)["error"]["message"]
    assert frontend.ledger.snapshot().workers[0].usable
    assert (await fleet.chat()).status == 200
    fleet.at_rest()


async def test_without_a_configuration_there_is_nothing_to_reload(fleet: Fleet) -> None:
    await fleet.engine("a")
    frontend = await fleet.open()
    assert (await fleet.ask("/v1/reload", admin=True)).status == 409
    assert (await fleet.ask("/v1/rollover", admin=True)).status == 409
    with pytest.raises(PointsmanError):
        await frontend.reload("test")


async def test_an_answer_that_its_client_still_reads_is_no_less_in_flight(fleet: Fleet) -> None:
    """The handler is through with it long before: a slow client must get the rest."""
    body = b'{"text": "%b"}' % (b"x" * 3_000_000)

    async def long(incoming: Any, responder: Any) -> None:
        responder.send(200, [(b"content-type", b"application/json")], body)

    await fleet.engine("a", answer=long)
    frontend = await fleet.open()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", int(frontend.url.rsplit(":", 1)[1])))
    with sock:
        ask = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (len(ask), ask))
        await fleet.until(lambda: frontend._server.unread == 1 and not frontend._server.busy)
        stopping = asyncio.create_task(frontend.close(600))
        await asyncio.sleep(0.2)
        assert not stopping.done()

        def rest() -> bytes:
            got = b""
            while not got.endswith(b'"}'):
                piece = sock.recv(65536)
                if not piece:
                    break
                got += piece
            return got

        answer = await asyncio.wait_for(asyncio.to_thread(rest), 30)
        assert answer.endswith(body[-3_000_000:])
        await asyncio.wait_for(stopping, 30)
