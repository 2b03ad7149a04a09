from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import zmq

from pointsman.core.engine_model import events as engine_events
from pointsman.core.ledger.events import KvFeedState
from pointsman.edge.cluster.kv_feed import KvFeed
from pointsman.edge.cluster.kv_limits import KvLimits
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.engines.openai_server import event_publisher
from pointsman.edge.engines.sim.faults import EventFaults
from pointsman.edge.wire.kv_events import (
    END_OF_REPLAY,
    BlockStored,
    EventBatch,
    EventForm,
    encode_batch,
    encode_frames,
)
from support.free_ports import free_port
from support.shut_port import shut_port

COMPLETE, PARTIAL, SYNCING, OFF = KvFeedState.COMPLETE, KvFeedState.PARTIAL, KvFeedState.SYNCING, KvFeedState.OFF
QUICK = KvTiming(
    subscribe_s=0.02,
    late_s=0.02,
    silence_s=0.05,
    replay_attempts=2,
    first_pause_s=0.01,
    unconnected_s=0.1,
    reopen_s=0.02,
)
SLICED = KvTiming(subscribe_s=0.02, slice_s=0.0)
"""One message or one event a turn, on the fastest machine as well."""


@pytest.fixture(autouse=True)
def publishers_that_say_who_listens(monkeypatch) -> None:
    """XPUB is PUB, and tells of subscriptions that it has read: from then on what it sends is heard."""
    monkeypatch.setattr(zmq, "PUB", zmq.XPUB)


def is_heard(publisher: zmq.Socket[bytes]) -> bool:
    """True once, when somebody has subscribed."""
    try:
        return publisher.recv(zmq.NOBLOCK)[:1] == b"\x01"
    except zmq.Again:
        return False


@pytest.fixture
async def feed_of(holder) -> AsyncIterator[Callable[..., KvFeed]]:
    """`feed_of(source)`: a feed into the holder, closed after the test."""
    async with AsyncExitStack() as stack:
        context = zmq.Context()
        stack.callback(context.destroy, 0)

        async def end(feed: KvFeed) -> None:
            await asyncio.gather(*feed.close(), return_exceptions=True)

        def make(source: KvSource, timing: KvTiming = QUICK, limits: KvLimits | None = None) -> KvFeed:
            loop = asyncio.get_running_loop()
            feed = KvFeed(source, context, holder.emit, lambda: 1000 * loop.time(), timing, limits)
            stack.push_async_callback(end, feed)
            return feed

        yield make


def source_of(server, *, replay: bool = True, **more: object) -> KvSource:
    publisher = server.state.publisher
    return KvSource("a/0", publisher.endpoint, publisher.replay_endpoint if replay else None, **more)


@pytest.fixture
def talk(session) -> Callable[..., Awaitable[None]]:
    """Requests that fill, reuse and evict blocks of a simulated engine."""
    total = 0

    async def talk(server, count: int = 12) -> None:
        nonlocal total
        for _ in range(count):
            total += 1
            prompt = f"{total % 7} is what this conversation is about, and then it goes on with {total}"
            body = {"model": "m", "prompt": prompt, "max_tokens": 9}
            async with session.post(server.url + "/v1/completions", json=body) as response:
                assert response.status == 200

    return talk


@pytest.fixture
def heard(eventually) -> Callable[..., Awaitable[None]]:
    """Waits until what a simulated engine publishes from now on comes."""
    by: set[zmq.Socket[bytes]] = set()

    async def wait(server) -> None:
        publisher = server.state.publisher._pub
        if publisher not in by:
            await eventually(lambda: is_heard(publisher))
            by.add(publisher)

    return wait


@pytest.fixture
def settled(holder, heard, eventually) -> Callable[..., Awaitable[None]]:
    """Waits until the feed has applied all that was published, and hears what comes."""

    async def wait(server, feed: KvFeed, state: KvFeedState = COMPLETE) -> None:
        await heard(server)
        publisher = server.state.publisher
        await eventually(lambda: holder.state is state and feed.status.last_seq == publisher.next_seq - 1)

    return wait


def truth(server) -> set[int]:
    return set(server.state.runner.engine.cached_hashes())


@pytest.mark.parametrize("form", list(EventForm))
async def test_a_cold_start_and_what_comes_then(start_sim, feed_of, talk, settled, holder, form):
    server = await start_sim(event_form=form, topic="kv@a@m", dp_rank=2)
    await talk(server)
    feed = feed_of(source_of(server, topic="kv@a@m", rank=2))
    await settled(server, feed)
    assert holder.hashes == truth(server) != set()
    await talk(server)
    await settled(server, feed)
    assert holder.hashes == truth(server)
    status = feed.status
    assert (status.gaps, status.losses, status.unusable, holder.orphans) == (0, 0, 0, 0)
    assert (status.batches, status.last_seq) == (server.state.publisher.next_seq, server.state.publisher.next_seq - 1)
    assert status.events >= status.batches < status.bytes
    assert 0 <= status.lag_s < 8


@pytest.mark.parametrize(
    "faults",
    [
        {"drop": 0.01},
        {"drop": 0.4},
        {"duplicate": 0.5},
        {"reorder": 0.5},
        {"drop": 0.2, "duplicate": 0.2, "reorder": 0.2},
    ],
)
async def test_lost_repeated_and_disordered_batches(start_sim, feed_of, talk, settled, holder, eventually, faults):
    server = await start_sim()
    feed = feed_of(source_of(server))
    await eventually(lambda: holder.state is COMPLETE)
    server.state.publisher.set_faults(EventFaults(**faults))
    await talk(server, 30)
    server.state.publisher.set_faults(EventFaults())
    await settled(server, feed)
    assert holder.hashes == truth(server)
    assert feed.status.losses == 0
    assert holder.orphans == 0


async def test_a_restart_begins_at_zero(start_sim, feed_of, talk, settled, holder):
    server = await start_sim()
    feed = feed_of(source_of(server))
    await talk(server)
    await settled(server, feed)
    await server.restart()
    await talk(server, 1)
    await settled(server, feed)
    assert holder.hashes == truth(server)
    assert feed.status.restarts == 1


async def test_a_new_process_that_says_nothing(start_sim, feed_of, talk, settled, holder, eventually):
    first, second = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    server = await start_sim(kv_events=first, replay=second)
    feed = feed_of(source_of(server))
    await talk(server)
    await settled(server, feed)
    await server.close()
    await eventually(lambda: holder.state is SYNCING)
    await start_sim(kv_events=first, replay=second)
    await eventually(lambda: holder.state is COMPLETE)
    assert holder.hashes == set()


async def test_a_cache_that_was_cleared_while_nobody_listened(start_sim, feed_of, talk, settled, holder):
    server = await start_sim()
    feed = feed_of(source_of(server))
    await talk(server)
    await settled(server, feed)
    server.state.publisher.set_faults(EventFaults(stop=True))
    assert server.state.runner.reset_prefix_cache()
    server.state.publisher.set_faults(EventFaults())
    await settled(server, feed)
    assert holder.hashes == truth(server) == set()


async def test_history_that_is_gone_is_said_and_a_cleared_cache_heals_it(start_sim, feed_of, talk, settled, holder):
    server = await start_sim(replay_batches=3)
    await talk(server)
    feed = feed_of(source_of(server))
    await settled(server, feed, PARTIAL)
    assert "keeps its events only from" in holder.reason
    assert holder.hashes < truth(server)
    assert server.state.runner.reset_prefix_cache()
    await talk(server, 1)
    await settled(server, feed)
    assert holder.hashes == truth(server)


async def test_a_replay_shorter_than_the_gap(start_sim, feed_of, talk, heard, settled, holder, eventually, caplog):
    caplog.set_level(logging.INFO, "pointsman")
    server = await start_sim(replay_batches=3)
    feed = feed_of(source_of(server))
    await eventually(lambda: holder.state is COMPLETE)
    await heard(server)
    await talk(server, 1)
    await settled(server, feed)
    server.state.publisher.set_faults(EventFaults(drop=1))
    await talk(server)
    server.state.publisher.set_faults(EventFaults())
    await talk(server, 1)
    await settled(server, feed, PARTIAL)
    assert holder.hashes <= truth(server)
    assert feed.status.losses >= 1  # a busy machine may see the rest of the talk as a gap of its own
    levels = [record.levelname for record in caplog.records if "KV events" in record.message]
    assert levels[:2] == ["INFO", "WARNING"]


async def test_without_replay(start_sim, feed_of, talk, heard, settled, holder, eventually):
    server = await start_sim(replay=None)
    feed = feed_of(source_of(server))
    await eventually(lambda: "no events so far" in holder.reason)
    await heard(server)
    await talk(server)
    await settled(server, feed)
    assert holder.hashes == truth(server)
    server.state.publisher.set_faults(EventFaults(drop=1))
    await talk(server, 2)
    server.state.publisher.set_faults(EventFaults())
    await talk(server, 1)
    await settled(server, feed, PARTIAL)
    assert holder.hashes <= truth(server)
    assert "replay_endpoint" in holder.reason


async def test_a_consumer_that_is_too_slow(start_sim, feed_of, heard, settled, holder, eventually, monkeypatch):
    monkeypatch.setattr(event_publisher, "_HIGH_WATER_MARK", 4)
    server = await start_sim()
    feed = feed_of(source_of(server), replace(QUICK, silence_s=5.0), KvLimits(live_messages=4))
    await eventually(lambda: holder.state is COMPLETE)
    await heard(server)
    told = 0

    def tell() -> None:
        nonlocal told
        event = engine_events.BlockStored((told + 1,), told or None, tuple(range(told, told + 512)), 512)
        server.state.publisher.publish([event])
        told += 1

    def gap_shows() -> bool:
        tell()  # the first that comes after those that were dropped
        return feed.status.gaps >= 1

    for _ in range(3000):
        tell()
    await eventually(gap_shows)
    await settled(server, feed)
    assert holder.hashes == set(range(1, told + 1))


async def test_others_have_their_turn_while_much_is_applied(start_sim, feed_of, settled, holder):
    server = await start_sim()
    for number in range(500):
        event = engine_events.BlockStored((number + 1,), None, tuple(range(number, number + 64)), 64)
        server.state.publisher.publish([event])
    feed = feed_of(source_of(server), SLICED)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            if feed.status.last_seq not in (None, 499):
                turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await settled(server, feed)
    counting.cancel()
    assert len(holder.hashes) == 500
    assert turns > 10


def flood(server, batches: int, blocks: int = 64) -> set[int]:
    """Batches of many blocks each, all at once. Returns the hashes."""
    for number in range(batches):
        hashes = range(number * blocks + 1, (number + 1) * blocks + 1)
        events = [engine_events.BlockStored((n,), None, tuple(range(n, n + 32)), 32) for n in hashes]
        server.state.publisher.publish(events)
    return set(range(1, batches * blocks + 1))


async def test_more_than_may_wait_is_dropped_and_asked_for_again(
    start_sim, feed_of, heard, settled, holder, eventually, caplog
):
    server = await start_sim()
    limits = KvLimits(waiting_bytes=100_000, live_messages=10_000)
    feed = feed_of(source_of(server), replace(SLICED, silence_s=0.5), limits)
    await eventually(lambda: holder.state is COMPLETE)
    await heard(server)
    told = flood(server, 60)
    await settled(server, feed)
    assert holder.hashes == told
    assert feed.status.dropped > 0
    assert (feed.status.losses, holder.orphans) == (0, 0)
    assert caplog.text.count("come faster than they can be applied") == 1


async def test_without_replay_what_was_dropped_is_a_loss(start_sim, feed_of, heard, settled, holder, eventually):
    server = await start_sim(replay=None)
    limits = KvLimits(waiting_bytes=100_000, live_messages=10_000)
    feed = feed_of(source_of(server), replace(SLICED, late_s=0.01), limits)
    await eventually(lambda: "no events so far" in holder.reason)
    await heard(server)
    told = flood(server, 40)
    await settled(server, feed, PARTIAL)
    assert holder.hashes < told
    assert feed.status.dropped > 0


async def test_a_replay_of_more_than_may_wait_comes_in_parts(start_sim, feed_of, settled, holder):
    server = await start_sim()
    told = flood(server, 60)
    feed = feed_of(source_of(server), SLICED, KvLimits(waiting_bytes=100_000))
    await settled(server, feed)
    assert (holder.hashes, feed.status.losses) == (told, 0)
    assert feed.status.replays > 1


@pytest.mark.parametrize(
    "limits", [KvLimits(behind_batches=5), KvLimits(behind_s=0.002)], ids=["by batches", "by seconds"]
)
async def test_far_behind_is_not_complete(start_sim, feed_of, heard, settled, holder, eventually, limits):
    server = await start_sim()
    feed = feed_of(source_of(server), SLICED, limits)
    await eventually(lambda: holder.state is COMPLETE)
    await heard(server)
    before = len(holder.changes)
    told = flood(server, 40)
    await settled(server, feed)
    changes = holder.changes[before:]
    # A busy machine may bring them in several bursts, each of which it is behind with.
    assert [change.state for change in changes] == [SYNCING, COMPLETE] * max(1, len(changes) // 2)
    assert all(change.reason.startswith("behind by ") for change in changes[::2])
    assert holder.hashes == told


async def test_a_large_batch_leaves_others_their_turn(start_sim, feed_of, heard, settled, holder, eventually):
    server = await start_sim()
    feed = feed_of(source_of(server), SLICED)
    await eventually(lambda: holder.state is COMPLETE)
    await heard(server)
    flood(server, 1, 500)
    amounts: set[int] = set()

    async def look() -> None:
        while True:
            amounts.add(len(holder.seen))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await settled(server, feed)
    looking.cancel()
    assert len(amounts) > 5
    assert len(holder.hashes) == 500


async def test_a_feed_that_is_doubted_finds_an_engine_that_is_another(publisher_of, feed_of, holder, eventually):
    publisher = publisher_of()
    publisher.store(1)
    timing = KvTiming(subscribe_s=0.02, doubt_s=30.0)
    feed = feed_of(KvSource("a/0", publisher.endpoint, publisher.replay_endpoint), timing)
    await eventually(publisher.answer)
    await eventually(lambda: holder.state is COMPLETE)
    publisher.sent[0] = encode_batch(EventBatch(2.0, (BlockStored((8,), None, (8,), 1),), 0))
    assert feed.doubted()
    assert not feed.doubted(), "one a while"
    await eventually(lambda: publisher.answer() or holder.hashes == {8})
    await eventually(lambda: publisher.answer() or holder.hashes == {8})
    await eventually(lambda: holder.state is COMPLETE)
    assert (holder.hashes, feed.status.restarts) == ({8}, 1)


# ---- publishers of other makes


class Publisher:
    """Raw sockets; replies to a replay have as many frames before the last two as it is told."""

    def __init__(self, context: zmq.Context, endpoint: str = "tcp://127.0.0.1:*", *, connect: bool = False) -> None:
        self.pub = context.socket(zmq.PUB)
        self.router = context.socket(zmq.ROUTER)
        if connect:
            self.pub.connect(endpoint)
        else:
            self.pub.bind(endpoint)
        self.router.bind("tcp://127.0.0.1:*")
        self.endpoint = self.pub.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.replay_endpoint = self.router.getsockopt(zmq.LAST_ENDPOINT).decode()
        self.sent: list[bytes] = []
        self.replays = 0
        self.before_last_two: list[bytes] = [b""]

    @property
    def is_heard(self) -> bool:
        return is_heard(self.pub)

    def send(self, payload: bytes, topic: str = "") -> None:
        self.pub.send_multipart(encode_frames(topic, len(self.sent), payload))
        self.sent.append(payload)

    def store(self, block_hash: int, **fields: object) -> None:
        event = BlockStored((block_hash,), None, (block_hash,), 1, **fields)
        self.send(encode_batch(EventBatch(1.0, (event,), 0)))

    def answer(self, *, end: bool = True) -> bool:
        """True once a replay was asked for and answered."""
        try:
            client, empty, start = self.router.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        assert empty == b""
        self.replays += 1
        for seq in range(int.from_bytes(start, "big"), len(self.sent)):
            self.router.send_multipart([client, *self.before_last_two, seq.to_bytes(8, "big"), self.sent[seq]])
        if end:
            self.router.send_multipart([client, *self.before_last_two, END_OF_REPLAY.to_bytes(8, "big"), b""])
        return True


@pytest.fixture
def publisher_of():
    context = zmq.Context()
    made: list[Publisher] = []

    def make(*args: object, **more: object) -> Publisher:
        made.append(Publisher(context, *args, **more))
        return made[-1]

    yield make
    context.destroy(0)


@pytest.mark.parametrize("before", [[b""], [b"", b""], [b"", b"kv@a"], []], ids=["plain", "dynamo", "topic", "bare"])
async def test_replies_may_have_more_frames(publisher_of, feed_of, holder, eventually, before):
    publisher = publisher_of()
    publisher.before_last_two = before
    publisher.store(1)
    publisher.store(2)
    feed_of(KvSource("a/0", publisher.endpoint, publisher.replay_endpoint))
    await eventually(publisher.answer)
    await eventually(lambda: holder.state is COMPLETE)
    assert holder.hashes == {1, 2}


async def test_an_engine_that_connects(publisher_of, feed_of, holder, eventually):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    feed = feed_of(KvSource("a/0", endpoint, bind=True))
    publisher = publisher_of(endpoint, connect=True)
    await eventually(lambda: "no events so far" in holder.reason)

    def heard() -> bool:
        publisher.store(5)
        return feed.status.batches > 0

    await eventually(heard)
    await eventually(lambda: holder.hashes == {5})


async def test_an_endpoint_that_cannot_be_opened(publisher_of, feed_of, holder, eventually):
    publisher = publisher_of()
    feed_of(KvSource("a/0", publisher.endpoint, bind=True))
    await eventually(lambda: holder.state is OFF)
    assert f"can't bind {publisher.endpoint}" in holder.reason
    publisher.pub.close(0)
    await eventually(lambda: holder.state is SYNCING or "no events so far" in holder.reason)


async def test_ipc(publisher_of, feed_of, holder, eventually, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket may have no more than 107 bytes
    publisher = publisher_of("ipc://kv")
    publisher.store(1)
    feed_of(KvSource("a/0", publisher.endpoint, publisher.replay_endpoint))
    await eventually(publisher.answer)
    await eventually(lambda: holder.state is COMPLETE)
    assert holder.hashes == {1}


async def test_a_batch_that_cannot_be_read_voids_what_is_known(publisher_of, feed_of, holder, eventually, caplog):
    publisher = publisher_of()
    publisher.store(1)
    feed = feed_of(KvSource("a/0", publisher.endpoint, publisher.replay_endpoint), KvTiming(subscribe_s=0.02))
    await eventually(publisher.answer)
    await eventually(lambda: holder.state is COMPLETE)
    await eventually(lambda: publisher.is_heard)
    publisher.send(b"\xc1")
    publisher.send(b"\xc1")
    publisher.store(2)
    await eventually(lambda: (feed.status.last_seq, holder.state) == (3, PARTIAL))
    assert (holder.hashes, feed.status.unusable) == ({2}, 2)
    assert caplog.text.count("KV events of a/0: an event batch can't be read") == 1


async def test_what_is_not_for_this_worker(publisher_of, feed_of, holder, eventually):
    publisher = publisher_of()
    feed = feed_of(KvSource("a/0", publisher.endpoint, publisher.replay_endpoint, topic="kv", rank=0))
    await eventually(publisher.answer)
    await eventually(lambda: holder.state is COMPLETE)
    await eventually(lambda: publisher.is_heard)
    publisher.pub.send_multipart(encode_frames("kv-of-another", 0, b"\xc1"))
    publisher.pub.send_multipart([b"kv", b"no number"])
    publisher.send(encode_batch(EventBatch(1.0, (BlockStored((1,), None, (1,), 1),), 0)), "kv")
    await eventually(lambda: feed.status.last_seq == 0)
    assert (holder.state, holder.hashes, feed.status.unusable) == (COMPLETE, {1}, 1)
    publisher.send(encode_batch(EventBatch(1.0, (BlockStored((2,), None, (2,), 1),), 7)), "kv")
    await eventually(lambda: (feed.status.last_seq, holder.state) == (1, PARTIAL))
    assert holder.hashes == set()
    assert "rank 7" in holder.reason


async def test_events_that_cannot_be_used_leave_the_others_as_they_are(publisher_of, feed_of, holder, eventually):
    publisher = publisher_of()
    feed = feed_of(KvSource("a/0", publisher.endpoint, publisher.replay_endpoint))
    await eventually(publisher.answer)
    await eventually(lambda: holder.state is COMPLETE)
    await eventually(lambda: publisher.is_heard)
    publisher.store(1)
    publisher.store(2, extra_keys=())
    publisher.store(3)
    await eventually(lambda: (feed.status.last_seq, holder.state) == (2, PARTIAL))
    assert holder.hashes == {1, 3}
    assert "0 extra keys for 1 blocks" in holder.reason


async def test_a_replay_that_is_not_answered(publisher_of, feed_of, holder, eventually):
    publisher = publisher_of()
    publisher.store(1)
    source = KvSource("a/0", publisher.endpoint, publisher.replay_endpoint)
    feed = feed_of(source, replace(QUICK, replay_silence_s=0.3, silence_s=30.0))
    await eventually(lambda: holder.state is PARTIAL)
    assert "nothing came for 0.3 s" in holder.reason
    assert feed.status.replays == 1
    feed._timing = QUICK  # from now on it is silent for long enough to be asked again
    feed._awake.set()

    def answered() -> bool:
        publisher.answer()
        return holder.state is COMPLETE

    await eventually(answered)
    assert holder.hashes == {1}


async def test_nobody_listens(feed_of, holder, eventually, caplog):
    with shut_port() as port:
        feed = feed_of(KvSource("a/0", f"tcp://127.0.0.1:{port}"))
        await eventually(lambda: "nobody listens" in feed.status.reason)
    assert holder.state is SYNCING
    assert "kv_events.bind" in caplog.text


async def test_after_its_end_nothing_is_told(start_sim, feed_of, talk, settled, holder):
    server = await start_sim()
    feed = feed_of(source_of(server))
    await talk(server)
    await settled(server, feed)
    heard = len(holder.changes), holder.hashes
    await asyncio.gather(*feed.close(), return_exceptions=True)
    assert server.state.runner.reset_prefix_cache()
    assert (len(holder.changes), holder.hashes) == heard
