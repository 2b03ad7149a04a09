from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from pointsman.core.engine_model.events import BlockStored
from pointsman.core.ledger.events import KvFeedState, WorkerJoined, WorkerLeft
from pointsman.edge.cluster.kv_feeds import KvFeeds
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource
from support.log_lines import own_lines
from support.patient_probes import PatientProbes

QUICK = KvTiming(subscribe_s=0.02, silence_s=0.05, first_pause_s=0.01)
SOURCE = WorkerSource("a", "http://127.0.0.1:1")


def facts_of(server, **more: object) -> EngineFacts:
    publisher = server.state.publisher
    events = (KvEventSource(0, publisher.endpoint, publisher.replay_endpoint),)
    return EngineFacts("vllm", "1", ("m",), capabilities=Capabilities(kv_events=events), **more)


@pytest.fixture
async def feeds(holder) -> AsyncIterator[KvFeeds]:
    loop = asyncio.get_running_loop()
    async with KvFeeds(holder.emit, lambda: 1000 * loop.time(), timing=QUICK) as feeds:
        yield feeds


async def test_an_engine_that_comes_and_goes(start_sim, feeds, holder, eventually):
    server = await start_sim()
    feeds.engine_known(SOURCE, facts_of(server), {"a/0"})
    await eventually(lambda: holder.state is KvFeedState.COMPLETE)
    (status,) = feeds.statuses()
    assert (status.worker, status.state, status.endpoint) == (
        "a/0",
        KvFeedState.COMPLETE,
        server.state.publisher.endpoint,
    )
    feeds.engine_left(SOURCE)
    assert feeds.statuses() == ()
    feeds.engine_left(SOURCE)


async def test_a_worker_that_is_doubted_is_asked(start_sim, feeds, holder, eventually):
    server = await start_sim()
    feeds.engine_known(SOURCE, facts_of(server), {"a/0"})
    await eventually(lambda: holder.state is KvFeedState.COMPLETE)
    await eventually(lambda: not feeds._feeds["a"]["a/0"]._sequence.asking)
    before = feeds.statuses()[0].replays
    assert [feeds.doubted("a/0"), feeds.doubted("a/0"), feeds.doubted("b/0")] == [True, False, False]
    assert feeds.statuses()[0].replays == before + 1
    feeds.engine_known(SOURCE, EngineFacts("vllm", "1", ("m",), capabilities=Capabilities(kv_events=())), frozenset())
    assert not feeds.doubted("a/0")


async def test_a_feed_stays_until_its_worker_joins_anew_or_its_place_changes(start_sim, feeds, holder, eventually):
    server, other = await start_sim(), await start_sim()
    feeds.engine_known(SOURCE, facts_of(server), {"a/0"})
    await eventually(lambda: holder.state is KvFeedState.COMPLETE)
    told = len(holder.changes)
    feeds.engine_known(SOURCE, facts_of(server, max_context_tokens=5), frozenset())
    assert len(holder.changes) == told
    feeds.engine_known(SOURCE, facts_of(server), {"a/0"})
    assert holder.state is KvFeedState.SYNCING
    await eventually(lambda: holder.state is KvFeedState.COMPLETE)
    feeds.engine_known(SOURCE, facts_of(other), frozenset())
    await eventually(lambda: holder.state is KvFeedState.COMPLETE)
    assert [status.endpoint for status in feeds.statuses()] == [other.state.publisher.endpoint]


async def test_a_place_that_changed_under_a_worker_that_stays_voids_what_is_known(start_sim, feeds, holder, eventually):
    server, other = await start_sim(), await start_sim()
    feeds.engine_known(SOURCE, facts_of(server), {"a/0"})
    server.state.publisher.publish([BlockStored((7,), None, (1, 2), 2)])
    await eventually(lambda: holder.hashes == {7})
    feeds.engine_known(SOURCE, facts_of(other), frozenset())
    assert holder.hashes == set()


async def test_why_there_is_no_feed_is_told_once(feeds, holder, caplog):
    off = EngineFacts("vllm", "1", ("m",), capabilities=Capabilities(kv_events=()))
    feeds.engine_known(SOURCE, off, {"a/0"})
    feeds.engine_known(SOURCE, off, frozenset())
    assert holder.states == [KvFeedState.OFF]
    (status,) = feeds.statuses()
    assert "--kv-events-config" in status.reason
    assert len(own_lines(caplog)) == 1
    assert "WARNING" in caplog.text


async def test_an_engine_that_never_sends_any_is_no_reason_to_warn(feeds, holder, caplog):
    feeds.engine_known(SOURCE, EngineFacts("llamacpp", "1", ("m",)), {"a/0"})
    assert holder.states == [KvFeedState.OFF]
    assert own_lines(caplog) == []


async def test_ranks_have_feeds_of_their_own(start_sim, feeds, eventually):
    servers = [await start_sim(dp_rank=rank) for rank in (0, 1)]
    places = [server.state.publisher for server in servers]
    events = tuple(KvEventSource(rank, place.endpoint, place.replay_endpoint) for rank, place in enumerate(places))
    facts = EngineFacts("vllm", "1", ("m",), ranks=(0, 1), capabilities=Capabilities(kv_events=events))
    feeds.engine_known(SOURCE, facts, {"a/0", "a/1"})
    await eventually(lambda: all(status.state is KvFeedState.COMPLETE for status in feeds.statuses()))
    assert [status.worker for status in feeds.statuses()] == ["a/0", "a/1"]


async def test_the_prober_tells_of_engines_after_the_ledger_knows_them(start_sim, feeds, holder, eventually, session):
    server = await start_sim()
    heard: list[object] = []
    loop = asyncio.get_running_loop()
    tell = holder.emit
    holder.emit = lambda event: (heard.append(event), tell(event))  # type: ignore[method-assign]
    feeds._emit = holder.emit
    timing = PatientProbes(interval_s=0.05)
    async with Prober(
        heard.append, lambda: 1000 * loop.time(), random.Random(1), timing=timing, listener=feeds
    ) as prober:
        await prober.start([WorkerSource("sim", server.url)])
        await eventually(lambda: holder.state is KvFeedState.COMPLETE)
        assert isinstance(heard[0], WorkerJoined)
        body = {"model": "m", "prompt": "a prompt of several blocks", "max_tokens": 3}
        async with session.post(server.url + "/v1/completions", json=body) as response:
            assert response.status == 200
        await eventually(lambda: holder.hashes == set(server.state.runner.engine.cached_hashes()) != set())
        await prober.remove("sim")
        assert isinstance(heard[-1], WorkerLeft)
        assert feeds.statuses() == ()
