"""Requests whose engine fails them before their client got a byte: who gets them next, how often, and who does not."""

from __future__ import annotations

import asyncio
import json

import pytest

from pointsman.core.model.fault import Fault
from pointsman.edge.serving.failover import FailoverSettings, RouteFailoverSettings
from pointsman.edge.serving.retries import NoRetry, Tries
from support.scripted_fleet import DONE, JSON, SSE, Fleet, delta, stream_three


def answering(status: int, headers=(), body: bytes = b'{"error":{"message":"mine"}}'):
    async def answer(incoming, responder) -> None:
        responder.send(status, [*JSON, *headers], body)

    return answer


async def cut(incoming, responder) -> None:
    responder.abort()


class TestTheRule:
    @pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.LATE])
    def test_what_was_not_taken_or_is_over_may_be_sent_again(self, fault: Fault) -> None:
        assert Tries(2).refusal(fault, budget_left=True) is None

    def test_what_may_still_be_computed_may_not(self) -> None:
        assert Tries(2).refusal(Fault.LATE, budget_left=True) is NoRetry.ACCEPTED
        assert Tries(2).refusal(None, budget_left=True) is NoRetry.NOT_THE_ENGINE

    def test_its_limit_and_the_budget(self) -> None:
        tries = Tries(2)
        assert tries.refusal(Fault.UNREACHABLE, budget_left=False) is NoRetry.BUDGET
        for _ in range(2):
            assert tries.refusal(Fault.UNREACHABLE, budget_left=True) is None
            tries.used(Fault.UNREACHABLE)
        assert tries.refusal(Fault.UNREACHABLE, budget_left=True) is NoRetry.LIMIT

    @pytest.mark.parametrize("fault", [Fault.LOST, Fault.MALFORMED, Fault.ERROR_EVENT])
    def test_one_resend_of_what_an_engine_was_lost_with(self, fault: Fault) -> None:
        tries = Tries(5)
        tries.used(fault)
        assert tries.refusal(Fault.LOST, budget_left=True) is NoRetry.RESENT
        assert tries.refusal(Fault.UNREACHABLE, budget_left=True) is None
        assert tries.refusal(Fault.SERVER_ERROR, budget_left=True) is None

    def test_engines_that_answer_500_are_asked_as_often_as_retries_says(self) -> None:
        tries = Tries(2)
        for _ in range(2):
            assert tries.refusal(Fault.SERVER_ERROR, budget_left=True) is None
            tries.used(Fault.SERVER_ERROR)
        assert tries.refusal(Fault.SERVER_ERROR, budget_left=True) is NoRetry.LIMIT


class TestSentElsewhere:
    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (answering(500), "server_error"),
            (answering(502), "server_error"),
            (answering(503), "overloaded"),
            (answering(429, [(b"retry-after", b"7")]), "overloaded"),
            (cut, "lost"),
        ],
    )
    @pytest.mark.parametrize("stream", [True, False])
    async def test_the_client_sees_nothing_of_it(self, fleet: Fleet, answer, reason: str, stream: bool) -> None:
        async def whole(incoming, responder) -> None:
            await (stream_three if stream else answering(200, body=b'{"choices":[]}'))(incoming, responder)

        bad = await fleet.engine("bad", answer=answer)
        good = await fleet.engine("good", answer=whole)
        frontend = await fleet.open(heartbeat_s=60.0)
        got = [await fleet.chat(stream=stream) for _ in range(2)]
        assert [a.status for a in got] == [200, 200]
        assert [a.header(b"x-pointsman-worker") for a in got] == [b"good/0"] * 2
        assert len(good.requests) == 2
        assert frontend.traffic.retries[reason] == len(bad.requests) >= 1
        row = next(record.row() for record in frontend.decisions if record.attempts == 2)
        assert row.failed_at == ["bad/0"]
        fleet.at_rest()

    async def test_a_stream_that_ends_before_its_first_event(self, fleet: Fleet) -> None:
        async def head_only(incoming, responder) -> None:
            responder.start(200, SSE)
            responder.flush_head()
            await asyncio.sleep(0.02)
            responder.abort()

        await fleet.engine("bad", answer=head_only)
        await fleet.engine("good")
        await fleet.open(heartbeat_s=60.0)
        assert [(await fleet.chat()).body.endswith(DONE) for _ in range(2)] == [True, True]
        fleet.at_rest()

    async def test_half_a_plain_answer_is_nothing_to_the_client(self, fleet: Fleet) -> None:
        async def half(incoming, responder) -> None:
            responder.start(200, JSON, length=100)
            responder.write(b'{"choices":')
            await asyncio.sleep(0.02)
            responder.abort()

        await fleet.engine("bad", answer=half)
        await fleet.engine("good", answer=answering(200, body=b"{}"))
        await fleet.open(heartbeat_s=60.0)
        assert [(await fleet.chat(stream=False)).body for _ in range(2)] == [b"{}", b"{}"]
        fleet.at_rest()


class TestNotSentElsewhere:
    @pytest.mark.parametrize("status", [400, 404, 413, 422, 501, 504])
    async def test_what_another_engine_would_say_too_or_may_still_be_computed(self, fleet: Fleet, status: int) -> None:
        engines = [await fleet.engine(name, answer=answering(status)) for name in "ab"]
        await fleet.open()
        answer = await fleet.chat()
        assert (answer.status, answer.body) == (status, b'{"error":{"message":"mine"}}')
        assert sum(len(e.requests) for e in engines) == 1
        fleet.at_rest()

    async def test_the_last_engines_answer_is_the_clients_when_nobody_is_left(self, fleet: Fleet) -> None:
        busy = answering(429, [(b"retry-after", b"7")])
        engines = [await fleet.engine(name, answer=busy) for name in "ab"]
        frontend = await fleet.open()
        answer = await fleet.chat()
        assert (answer.status, answer.header(b"retry-after")) == (429, b"7")
        assert answer.header(b"x-pointsman-worker") in (b"a/0", b"b/0")
        assert [len(e.requests) for e in engines] == [1, 1]
        assert frontend.traffic.retries_refused["nobody"] == 1
        fleet.at_rest()

    async def test_the_budget_is_over_all_requests(self, fleet: Fleet) -> None:
        engines = [await fleet.engine(name, answer=answering(500)) for name in "ab"]
        frontend = await fleet.open(failover=FailoverSettings(retry_share=0.0))
        assert (await fleet.chat()).status == 500
        assert sum(len(e.requests) for e in engines) == 1
        assert frontend.traffic.retries_refused["budget"] == 1
        metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body
        assert b'pointsman_retries_refused_total{reason="budget"} 1.0' in metrics

    async def test_a_route_may_have_none(self, fleet: Fleet) -> None:
        engines = [await fleet.engine(name, answer=answering(500)) for name in "ab"]
        routes = {"/v1/chat/completions": RouteFailoverSettings(retries=0)}
        await fleet.open(failover=FailoverSettings(routes=routes))
        assert (await fleet.chat()).status == 500
        assert sum(len(e.requests) for e in engines) == 1
        await fleet.ask("/v1/completions", {"model": "m", "prompt": "x"})
        assert sum(len(e.requests) for e in engines) == 3
        fleet.at_rest()


class TestTakenAway:
    async def test_what_waits_at_a_worker_that_drains_goes_elsewhere(self, fleet: Fleet) -> None:
        async def hang(incoming, responder) -> None:
            await asyncio.Event().wait()

        slow = await fleet.engine("slow", answer=hang)
        await fleet.engine("good")
        frontend = await fleet.open(heartbeat_s=60.0)
        first = asyncio.create_task(fleet.chat())
        await fleet.until(lambda: slow.running == 1)
        worker = frontend.ledger.snapshot().workers[0].id
        assert frontend.dispatcher.migrate_from(worker, "it drains") == 1
        assert (await first).body.endswith(DONE)
        await asyncio.wait_for(slow.abort_seen.wait(), 30)
        assert frontend.traffic.retries["drain"] == 1
        fleet.at_rest()

    async def test_nobody_is_moved_where_nobody_else_is(self, fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def wait(incoming, responder) -> None:
            await go_on.wait()
            await stream_three(incoming, responder)

        only = await fleet.engine("only", answer=wait)
        frontend = await fleet.open(heartbeat_s=60.0)
        asking = asyncio.create_task(fleet.chat())
        await fleet.until(lambda: only.running == 1)
        assert frontend.dispatcher.migrate_from(frontend.ledger.snapshot().workers[0].id, "it drains") == 0
        go_on.set()
        assert (await asking).status == 200

    @pytest.mark.parametrize("begun", [False, True])
    async def test_what_is_cut_says_why(self, fleet: Fleet, begun: bool) -> None:
        async def hang(incoming, responder) -> None:
            responder.start(200, SSE)
            if begun:
                responder.write(delta("x"))
            await asyncio.Event().wait()

        engine = await fleet.engine("a", answer=hang)
        frontend = await fleet.open(heartbeat_s=60.0)
        asking = asyncio.create_task(fleet.chat())
        await fleet.until(lambda: engine.running == 1 and fleet.heard() == begun)
        worker = frontend.ledger.snapshot().workers[0].id
        assert frontend.dispatcher.cut(worker, "its grace is over") == 1
        answer = await asking
        assert answer.status == (200 if begun else 503)
        last = answer.body.rsplit(b"data: ", 1)[-1]
        assert "its grace is over" in json.loads(last)["error"]["message"]
        await asyncio.wait_for(engine.abort_seen.wait(), 30)
        fleet.at_rest()
