"""Streams of engines that tell no token ids: computed again elsewhere, compared, and gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import HealthRead
from pointsman.edge.configuration.control_plane import Timeouts as ConfiguredTimeouts
from pointsman.edge.serving.failover import FailoverSettings, RouteFailoverSettings
from pointsman.edge.serving.timeouts import Timeouts
from support.scripted_fleet import JSON, SSE, Engine, Fleet
from support.told_streams import Piece, Story, hear
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.scripted import chatted, scripted

GENEROUS = Timeouts.of(ConfiguredTimeouts())
STORY = Story(
    [
        Piece((1,), "reasoning", "hm"),
        Piece((2,), "reasoning", ", well"),
        Piece((3,), "content", "I "),
        Piece((4,), "content", "look"),
        Piece((5,), "call", "", 0, "look"),
        Piece((6,), "call", '{"at":', 0),
        Piece((7,), "call", '"a"}', 0),
    ],
    logprobs=True,
    finish="tool_calls",
)
OTHER = replace(STORY, name={"id": "chatcmpl-2", "created": 2, "model": "m"})
GREEDY = {"temperature": 0, "stream_options": {"include_usage": True}}


def telling(events: Sequence[bytes], *, cut: str = "reset"):
    """Sends these events; then the connection is cut, hangs, ends early, or it was all."""

    async def answer(incoming, responder) -> None:
        responder.start(200, SSE)
        for event in events:
            responder.write(event)
            await asyncio.sleep(0.001)
        if cut == "hang":
            await asyncio.Event().wait()
        if cut == "reset":
            await asyncio.sleep(0.02)
            responder.abort()
        else:
            responder.finish()

    return answer


def in_turn(first, second) -> list[Engine]:
    """Whoever is asked first tells the first part."""
    turns = iter([first, second, second])

    async def answer(incoming, responder) -> None:
        await next(turns)(incoming, responder)

    return [Engine(name, answer=answer) for name in "ab"]


async def two(fleet: Fleet, first, second, **settings):
    for engine in in_turn(first, second):
        await fleet.engine(engine.name, answer=engine.answer)
    return await fleet.open(**{"heartbeat_s": 60.0, **settings})


@pytest.mark.parametrize("sent", range(1, len(STORY.events()) - 2))
async def test_tools_reasoning_and_logprobs(fleet: Fleet, sent: int) -> None:
    frontend = await two(
        fleet, telling(STORY.events()[:sent]), telling(OTHER.events([2, 1, 3], call_ids="b"), cut="all")
    )
    answer = await fleet.chat(**GREEDY)
    expected = hear(b"".join(STORY.events()))
    assert hear(answer.body) == expected
    assert answer.header(b"x-pointsman-worker") == b"a/0"
    assert frontend.traffic.migrations["replay", "finished"] == 1
    assert frontend.traffic.ttft_s.count == 1
    totals = frontend.ledger.snapshot().totals
    assert (totals.finished, totals.failed, totals.output_tokens) == (1, 0, 7)
    fleet.at_rest()


@pytest.mark.parametrize("usage", [True, False])
async def test_only_the_end_is_missing(fleet: Fleet, usage: bool) -> None:
    """Without usage nobody is asked again; with it, it is computed once more."""
    options = {"include_usage": usage}
    events = STORY.events()
    frontend = await two(fleet, telling(events[:-2]), telling(OTHER.events([2, 1, 3]), cut="all"))
    answer = await fleet.chat(temperature=0, stream_options=options)
    heard = hear(answer.body)
    assert (heard.dones, heard.finishes, bool(heard.usages)) == (1, ["tool_calls"], usage)
    assert heard.texts == hear(b"".join(events)).texts
    assert frontend.traffic.migrations["replay", "begun"] == usage
    fleet.at_rest()


async def test_another_answer_is_never_mixed_in(fleet: Fleet) -> None:
    other = replace(OTHER, pieces=[*STORY.pieces[:2], Piece((9,), "content", "You "), *STORY.pieces[4:]])
    frontend = await two(fleet, telling(STORY.events()[:5]), telling(other.events(), cut="all"))
    heard = hear((await fleet.chat(**GREEDY)).body)
    assert heard.texts == hear(b"".join(STORY.events()[:5])).texts
    assert heard.dones == 0
    assert "something else" in heard.errors[0]
    assert frontend.traffic.migrations["replay", "diverged"] == 1
    assert frontend.traffic.migrations_refused["diverged"] == 1
    assert frontend.ledger.snapshot().totals.failed == 1
    fleet.at_rest()


async def test_one_shot_events_that_the_client_has_not_are_passed_on_whole(fleet: Fleet) -> None:
    """Cut after the head of the stream only: whatever comes then is new, also of a sampled answer."""
    frontend = await two(fleet, telling(STORY.events()[:1]), telling(OTHER.events(), cut="all"))
    heard = hear((await fleet.chat(stream_options={"include_usage": True})).body)
    assert heard == hear(b"".join(STORY.events()))
    assert frontend.traffic.migrations["replay", "finished"] == 1


@pytest.mark.parametrize(
    ("fields", "label", "word"),
    [
        ({}, "inexact", "sampled without a seed"),
        ({"temperature": 0, "n": 2}, "off", "several answers"),
        ({"temperature": 0.5, "response_format": {"type": "json_object"}}, "inexact", "guided"),
        ({"temperature": 0, "use_beam_search": True}, "inexact", "beams"),
    ],
)
async def test_what_cannot_be_exact_ends_with_an_event_that_says_why(
    fleet: Fleet, fields: dict, label: str, word: str
) -> None:
    frontend = await two(fleet, telling(STORY.events()[:5]), telling(OTHER.events(), cut="all"))
    heard = hear((await fleet.chat(**fields)).body)
    assert heard.dones == 0
    assert word in heard.errors[0]
    assert frontend.traffic.migrations_refused[label] == 1
    assert not frontend.traffic.migrations
    fleet.at_rest()


@pytest.mark.parametrize("how", ["route", "header"])
async def test_switched_off(fleet: Fleet, how: str) -> None:
    routes = {"/v1/chat/completions": RouteFailoverSettings(migration=False)} if how == "route" else {}
    headers = [(b"x-pointsman-migration", b"off")] if how == "header" else []
    frontend = await two(
        fleet, telling(STORY.events()[:5]), telling(OTHER.events(), cut="all"), failover=FailoverSettings(routes=routes)
    )
    heard = hear((await fleet.chat(headers=headers, **GREEDY)).body)
    assert "switched" in heard.errors[0]
    assert frontend.traffic.migrations_refused["off"] == 1
    for engine in fleet.engines:
        assert all(request.header(b"x-pointsman-migration") is None for request in engine.requests)


@pytest.mark.parametrize(
    ("sent", "cut"),
    [
        ([*STORY.events()[:4], b'data: {"error":{"message":"EngineCore is dead","code":500}}\n\n'], "all"),
        (STORY.events()[:4], "all"),
        (STORY.events()[:4], "hang"),
    ],
)
def test_other_ways_to_break_off(sent: list[bytes], cut: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        engines = in_turn(telling(sent, cut=cut), telling(OTHER.events(), cut="all"))
        async with scripted(loop, *engines, timeouts=replace(GENEROUS, idle_s=0.2)) as frontend:
            assert hear((await chatted(frontend, **GREEDY)).body) == hear(b"".join(STORY.events()))
            assert frontend.traffic.migrations["replay", "finished"] == 1

    run_virtual(main)


async def test_an_error_that_is_the_requests_own_is_the_clients(fleet: Fleet) -> None:
    own = b'data: {"error":{"message":"bad grammar","code":400}}\n\n'
    frontend = await two(fleet, telling([*STORY.events()[:4], own], cut="all"), telling([], cut="all"))
    answer = await fleet.chat(**GREEDY)
    assert answer.body.endswith(own)
    assert not frontend.traffic.migrations


async def test_a_worker_that_drains_gives_its_streams_away(fleet: Fleet) -> None:
    frontend = await two(fleet, telling(STORY.events()[:5], cut="hang"), telling(OTHER.events(), cut="all"))
    asking = asyncio.create_task(fleet.chat(**GREEDY))
    await fleet.until(lambda: fleet.heard() == 5)
    [worker] = [w.id for w in frontend.ledger.snapshot().workers if w.running]
    assert frontend.dispatcher.migrate_from(worker, "its engine drains") == 1
    assert hear((await asking).body) == hear(b"".join(STORY.events()))
    assert sum(engine.aborted for engine in fleet.engines) == 1
    assert frontend.ledger.snapshot().totals.attempts_failed == 1
    fleet.at_rest()


async def test_a_sampled_stream_stays_where_it_is_when_its_worker_drains(fleet: Fleet) -> None:
    go_on = asyncio.Event()

    async def slow(incoming, responder) -> None:
        responder.start(200, SSE)
        for event in STORY.events()[:5]:
            responder.write(event)
        await go_on.wait()
        responder.write(b"".join(STORY.events()[5:]))
        responder.finish()

    frontend = await two(fleet, slow, telling([], cut="all"))
    asking = asyncio.create_task(fleet.chat(stream_options={"include_usage": True}))
    await fleet.until(lambda: fleet.heard() == 5)
    [worker] = [w.id for w in frontend.ledger.snapshot().workers if w.running]
    assert frontend.dispatcher.migrate_from(worker, "its engine drains") == 0
    go_on.set()
    assert hear((await asking).body) == hear(b"".join(STORY.events()))


@pytest.mark.parametrize("begun", [True, False])
def test_a_stopped_process_does_not_keep_its_requests(begun: bool) -> None:
    """It accepts connections still, and says nothing: probes find that out, long before the idle limit."""

    async def main(loop: VirtualLoop) -> None:
        first = telling(STORY.events()[: 5 if begun else 0], cut="hang")
        engines = in_turn(first, telling(OTHER.events(), cut="all"))
        async with scripted(loop, *engines, heartbeat_s=60.0) as frontend:
            asking = asyncio.create_task(chatted(frontend, **GREEDY))
            await asyncio.sleep(0.1)
            [worker] = [w.id for w in frontend.ledger.snapshot().workers if w.running]
            frontend.dispatcher.look()
            assert not asking.done()
            now_ms = frontend._clock()
            for number in range(4):
                frontend.ledger.apply(HealthRead(worker, now_ms + 20_000 * number, False, False, "no answer"))
            await asyncio.sleep(1.1)
            frontend.dispatcher.look()
            heard = hear((await asyncio.wait_for(asking, 5)).body)
            assert heard.texts == hear(b"".join(STORY.events())).texts
            assert heard.dones == 1

    run_virtual(main)


def test_a_stream_waits_for_a_worker_and_then_says_why_there_is_none() -> None:
    async def main(loop: VirtualLoop) -> None:
        only = Engine("only", answer=telling(STORY.events()[:5]))
        wait = FailoverSettings(migration_wait_s=0.3)
        async with scripted(loop, only, heartbeat_s=60.0, failover=wait) as frontend:
            heard = hear((await chatted(frontend, **GREEDY)).body)
            assert "no worker could go on with it" in heard.errors[0]
            assert frontend.traffic.migrations_refused["no_worker"] == 1

    run_virtual(main)


async def test_an_engine_that_comes_back_goes_on_with_its_own_stream(fleet: Fleet) -> None:
    turns = iter([telling(STORY.events()[:5]), telling(OTHER.events(), cut="all")])

    async def answer(incoming, responder) -> None:
        await next(turns)(incoming, responder)

    await fleet.engine("only", answer=answer)
    await fleet.open(heartbeat_s=60.0)
    assert hear((await fleet.chat(**GREEDY)).body) == hear(b"".join(STORY.events()))
    fleet.at_rest()


async def test_whoever_cannot_go_on_with_it_is_passed_over(fleet: Fleet) -> None:
    async def busy(incoming, responder) -> None:
        responder.send(503, JSON, b"{}")

    turns = iter([telling(STORY.events()[:5]), busy, telling(OTHER.events(), cut="all")])

    async def answer(incoming, responder) -> None:
        await next(turns)(incoming, responder)

    for name in "abc":
        await fleet.engine(name, answer=answer)
    frontend = await fleet.open(heartbeat_s=60.0)
    assert hear((await fleet.chat(**GREEDY)).body) == hear(b"".join(STORY.events()))
    row = next(iter(frontend.decisions)).row()
    assert len(row.failed_at) == 2
    fleet.at_rest()


async def test_metrics_tell_of_it(fleet: Fleet) -> None:
    await two(fleet, telling(STORY.events()[:5]), telling(OTHER.events(), cut="all"))
    await fleet.chat(**GREEDY)
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body
    assert b'pointsman_migrations_total{mechanism="replay",outcome="begun"} 1.0' in metrics
    assert b'pointsman_migrations_total{mechanism="replay",outcome="finished"} 1.0' in metrics
    status = json.loads((await fleet.ask("/v1/status", method="GET", admin=True)).body)
    assert status["requests"]["migrations_total"] == 1
    assert {worker["migration"] for worker in status["workers"]} == {"replay"}
