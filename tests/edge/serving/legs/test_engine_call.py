"""One call to an engine beside the attempt that answers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import WorkerId
from pointsman.edge.serving.breaks import DeadlineError, EngineTimeoutError, NotMovedError
from pointsman.edge.serving.legs import engine_call
from pointsman.edge.serving.legs.engine_call import EngineCall
from pointsman.edge.serving.legs.numbers import LEAST, MOST, LegNumbers
from pointsman.edge.wire.http1_client import Origin, UpstreamPool, UpstreamProtocolError, request_head
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from pointsman.edge.wire.http1_server import HttpServer
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.network import HOST

ENGINE = "10.0.0.1"
ORIGIN = Origin.parse(f"http://{ENGINE}:8000")
Handle = Callable[[IncomingRequest, Responder], Any]


def call(**limits: Any) -> EngineCall:
    body = b"{}"
    head = request_head(b"POST", b"/x", ORIGIN, [], len(body))
    return EngineCall(WorkerId("e/0"), ORIGIN, head, body, **{"limit_s": 10.0, **limits})


def scene(handle: Handle, main: Callable[[UpstreamPool, VirtualLoop], Any]) -> None:
    async def run(loop: VirtualLoop) -> None:
        token = HOST.set(ENGINE)
        server = HttpServer(handle)
        await server.start(ENGINE, 8000)
        HOST.reset(token)
        pool = UpstreamPool()
        try:
            await main(pool, loop)
            assert pool.open_connections <= 1
        finally:
            await pool.close()
            await server.close()

    run_virtual(run)


async def says_yes(request: IncomingRequest, responder: Responder) -> None:
    responder.send(200, ((b"content-type", b"application/json"),), b'{"yes":1}')


async def says_nothing(request: IncomingRequest, responder: Responder) -> None:
    await asyncio.Event().wait()


def test_an_answer_is_whole() -> None:
    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        one = call()
        await one.run(pool)
        assert (one.answered, one.over, one.status, one.body, one.fault) == (True, True, 200, b'{"yes":1}', None)
        assert pool.open_connections == 1, "its connection is kept"

    scene(says_yes, main)


@pytest.mark.parametrize(("status", "fault"), [(400, None), (429, Fault.OVERLOADED), (500, Fault.SERVER_ERROR)])
def test_what_is_no_success_is_told_by_its_status_alone(status: int, fault: Fault | None) -> None:
    async def handle(request: IncomingRequest, responder: Responder) -> None:
        responder.send(status, ((b"retry-after", b"7"),), b"your prompt was: secret")

    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        one = call()
        await one.run(pool)
        assert (one.answered, one.reason, one.fault) == (False, f"it answered {status}", fault)
        assert one.retry_after_ms == (7000.0 if status == 429 else None)

    scene(handle, main)


@pytest.mark.parametrize(("deadline_s", "error"), [(None, EngineTimeoutError), (5.0, DeadlineError)])
def test_it_waits_no_longer_than_it_may(deadline_s: float | None, error: type[Exception]) -> None:
    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        began_s = loop.time()
        one = call(deadline_s=None if deadline_s is None else began_s + deadline_s)
        await one.run(pool)
        assert isinstance(one.error, error)
        assert loop.time() - began_s == pytest.approx(deadline_s or 10.0)
        assert one.fault is (Fault.LATE if deadline_s is None else None)

    scene(says_nothing, main)


def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_call, "MOST_ANSWER_BYTES", 1000)

    async def handle(request: IncomingRequest, responder: Responder) -> None:
        responder.send(200, (), bytes(2000))

    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        one = call()
        await one.run(pool)
        assert isinstance(one.error, UpstreamProtocolError)
        assert one.fault is Fault.MALFORMED
        await asyncio.sleep(0.1)
        assert pool.open_connections == 0

    scene(handle, main)


def test_whoever_interrupts_it_says_why_once() -> None:
    gone = []

    async def handle(request: IncomingRequest, responder: Responder) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gone.append(True)
            raise

    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        one = call()
        task = asyncio.create_task(one.run(pool))
        await asyncio.sleep(1.0)
        first = NotMovedError("first", "x")
        one.interrupt(first)
        one.interrupt(NotMovedError("second", "x"))
        await task
        assert one.error is first
        assert one.fault is None
        await asyncio.sleep(1.0)
        assert gone == [True]

    scene(handle, main)


def test_one_that_is_interrupted_while_it_connects_is_never_sent() -> None:
    seen = []

    async def handle(request: IncomingRequest, responder: Responder) -> None:
        seen.append(request.path)
        await says_yes(request, responder)

    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        one = call()
        task = asyncio.create_task(one.run(pool))
        await asyncio.sleep(0)
        one.interrupt(NotMovedError("no", "x"))
        await task
        await asyncio.sleep(1.0)
        assert seen == []

    scene(handle, main)


def test_a_kept_connection_that_was_closed_costs_nothing() -> None:
    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        await call().run(pool)
        one = call()
        task = asyncio.create_task(one.run(pool))
        await asyncio.sleep(0)
        loop.network.reset(ENGINE)
        await task
        assert one.answered

    scene(says_yes, main)


def test_nobody_there() -> None:
    async def main(pool: UpstreamPool, loop: VirtualLoop) -> None:
        loop.network.kill(ENGINE)
        one = call()
        await one.run(pool)
        assert one.fault is Fault.UNREACHABLE

    scene(says_yes, main)


def test_numbers_of_transfers_are_never_given_twice() -> None:
    numbers, others = LegNumbers(seed=1), LegNumbers(seed=2)
    found = {numbers.next() for _ in range(1000)} | {others.next() for _ in range(1000)}
    assert len(found) == 2000
    assert all(LEAST <= number < MOST for number in found)
    numbers._next = MOST - LEAST - 1
    assert LEAST <= numbers.next() < MOST
    assert LegNumbers(seed=1).next() != LegNumbers().next()
