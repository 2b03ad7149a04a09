from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.wire.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventForm,
    decode_batch,
    decode_frames,
    decode_replay_reply,
    encode_replay_request,
)
from support.engine_client import Client

TIME_LIMIT_S = 30.0


class Subscriber:
    """A SUB socket that is known to receive, and the set of blocks that its messages tell of."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.seqs: list[int] = []
        self.topics: set[str] = set()
        self.batches: list[EventBatch] = []
        self.blocks: set[object] = set()

    async def connect(self, server: SimServer) -> None:
        self._socket.connect(server.state.publisher.endpoint)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        # PUB drops what it sends before the subscription has arrived, so send until something comes.
        while not await self._socket.poll(5):
            server.state.runner.reset_prefix_cache()
        # From then on nothing is lost: what it sent meanwhile comes, however late.
        seq = -1
        while seq < server.state.publisher.next_seq - 1:
            _, seq, _ = decode_frames(await asyncio.wait_for(self._socket.recv_multipart(), TIME_LIMIT_S))

    async def receive(self, count: int) -> None:
        for _ in range(count):
            frames = await asyncio.wait_for(self._socket.recv_multipart(), TIME_LIMIT_S)
            topic, seq, payload = decode_frames(frames)
            self.topics.add(topic)
            self.seqs.append(seq)
            self.batches.append(decode_batch(payload))
            self._apply(self.batches[-1])

    def _apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.blocks.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.blocks.difference_update(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self.blocks.clear()

    async def silent(self) -> bool:
        return not await self._socket.poll(30)


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def watch(start_sim: Any, context: Any) -> AsyncIterator[Callable[..., Awaitable[tuple[SimServer, Subscriber]]]]:
    """A server with events and replay, and a subscriber that receives from it."""
    async with AsyncExitStack() as stack:

        async def start(**overrides: object) -> tuple[SimServer, Subscriber]:
            endpoints = {"kv_events": "tcp://127.0.0.1:*", "replay": "tcp://127.0.0.1:*"}
            server = await start_sim(**{**endpoints, **overrides})
            socket = context.socket(zmq.SUB)
            stack.callback(socket.close, 0)
            subscriber = Subscriber(socket)
            await subscriber.connect(server)
            return server, subscriber

        yield start


async def replay(context: Any, server: SimServer, start_seq: int) -> list[tuple[int, EventBatch]]:
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(server.state.publisher.replay_endpoint)
        await dealer.send_multipart(encode_replay_request(start_seq))
        out = []
        while True:
            frames = await asyncio.wait_for(dealer.recv_multipart(), TIME_LIMIT_S)
            reply = decode_replay_reply(frames)
            if reply is None:
                return out
            out.append((reply[0], decode_batch(reply[1])))


@pytest.mark.parametrize("form", list(EventForm))
async def test_events_tell_the_true_set_of_blocks(watch: Any, client_of: Any, form: EventForm) -> None:
    server, subscriber = await watch(num_blocks=24, max_model_len=64, event_form=form, topic="kv@a@m", dp_rank=3)
    client = client_of(server)
    first_seq = server.state.publisher.next_seq
    for number in range(12):
        await client.complete(f"{number % 5} a prompt of a few blocks, number {number % 3}", max_tokens=9)
    published = server.state.publisher.next_seq - first_seq
    await subscriber.receive(published)
    truth = (await client.get("/sim/blocks")).json["media"]["GPU"]["hashes"]
    assert subscriber.blocks == set(truth) != set()
    assert subscriber.seqs == list(range(first_seq, first_seq + published))
    assert subscriber.topics == {"kv@a@m"}
    assert {batch.dp_rank for batch in subscriber.batches} == {3}
    kinds = {type(event) for batch in subscriber.batches for event in batch.events}
    assert kinds == {BlockStored, BlockRemoved}


async def test_adapter_and_salt_are_in_the_extra_keys(watch: Any, client_of: Any) -> None:
    server, subscriber = await watch(loras=("ad",))
    body = {"model": "ad", "prompt": "a prompt of several blocks", "max_tokens": 1, "cache_salt": "pepper"}
    await client_of(server).post("/v1/completions", body)
    await subscriber.receive(1)
    (event,) = subscriber.batches[0].events
    assert isinstance(event, BlockStored)
    assert (event.lora_name, event.medium, event.parent_block_hash) == ("ad", "GPU", None)
    assert event.extra_keys == (("ad", "pepper"), *[("ad",)] * (len(event.block_hashes) - 1))


async def test_a_replay_brings_back_what_was_published(watch: Any, client_of: Any, context: Any) -> None:
    server, subscriber = await watch()
    first_seq = server.state.publisher.next_seq
    for number in range(4):
        await client_of(server).complete(f"prompt number {number} of this test", max_tokens=1)
    await subscriber.receive(4)
    replayed = await replay(context, server, first_seq + 1)
    assert [seq for seq, _ in replayed] == subscriber.seqs[1:]
    assert [batch for _, batch in replayed] == subscriber.batches[1:]
    assert await replay(context, server, first_seq + 100) == []


async def test_only_the_last_batches_are_kept_and_odd_requests_ignored(
    start_sim: Any, client_of: Any, context: Any
) -> None:
    server = await start_sim(kv_events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", replay_batches=3)
    for number in range(6):
        await client_of(server).complete(f"prompt number {number} of this test", max_tokens=1)
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(server.state.publisher.replay_endpoint)
        await dealer.send_multipart([b"", b"short"])
        await dealer.send_multipart([b"too", b"many", b"frames"])
        await dealer.send_multipart(encode_replay_request(0))
        seqs = []
        while (reply := decode_replay_reply(await asyncio.wait_for(dealer.recv_multipart(), TIME_LIMIT_S))) is not None:
            seqs.append(reply[0])
    assert seqs == [3, 4, 5]


async def publish(server: SimServer, client: Any, count: int) -> list[int]:
    """That many batches; returns their sequence numbers."""
    first = server.state.publisher.next_seq
    for number in range(count):
        await client.complete(f"{first + number} is the number of this prompt", max_tokens=1)
    assert server.state.publisher.next_seq == first + count
    return list(range(first, first + count))


async def test_dropped_batches_leave_gaps_that_a_replay_fills(watch: Any, client_of: Any, context: Any) -> None:
    server, subscriber = await watch(seed=7)
    client = client_of(server)
    await client.faults(events={"drop": 0.5})
    lossy = await publish(server, client, 12)
    await client.faults()
    (last,) = await publish(server, client, 1)
    while last not in subscriber.seqs:
        await subscriber.receive(1)
    assert 1 < len(subscriber.seqs) < 13
    assert set(subscriber.seqs) < {*lossy, last}
    assert [seq for seq, _ in await replay(context, server, lossy[0])] == [*lossy, last]


async def test_batches_can_come_twice(watch: Any, client_of: Any) -> None:
    server, subscriber = await watch()
    client = client_of(server)
    await client.faults(events={"duplicate": 1})
    seqs = await publish(server, client, 2)
    await subscriber.receive(4)
    assert subscriber.seqs == [seqs[0], seqs[0], seqs[1], seqs[1]]


async def test_batches_can_change_places(watch: Any, client_of: Any) -> None:
    server, subscriber = await watch()
    client = client_of(server)
    await client.faults(events={"reorder": 1})
    a, b, c = await publish(server, client, 3)
    await subscriber.receive(2)
    assert await subscriber.silent()
    await client.faults()
    await subscriber.receive(1)
    assert subscriber.seqs == [b, a, c]


async def test_stopped_events_are_numbered_on(watch: Any, client_of: Any) -> None:
    server, subscriber = await watch()
    client = client_of(server)
    await client.faults(events={"stop": True})
    await publish(server, client, 2)
    assert await subscriber.silent()
    await client.faults()
    (seq,) = await publish(server, client, 1)
    await subscriber.receive(1)
    assert subscriber.seqs == [seq]


async def test_after_a_restart_the_sequence_begins_at_zero(watch: Any, client_of: Any) -> None:
    server, subscriber = await watch()
    client = client_of(server)
    await publish(server, client, 2)
    await subscriber.receive(2)
    await server.restart()
    async with aiohttp.ClientSession() as session:  # connections of before may not have heard yet that they are cut
        await publish(server, Client(session, server), 1)
    await subscriber.receive(1)
    assert subscriber.seqs[-1] == 0


async def test_where_events_are_is_told(watch: Any, client_of: Any) -> None:
    server, _ = await watch(dp_rank=2)
    source = (await client_of(server).get("/kv_event_sources")).json["2"]
    assert source["enable_kv_cache_events"] is True
    assert source["endpoint"] == server.state.publisher.endpoint
    assert source["endpoint"].rpartition(":")[2].isdigit()
    assert source["replay_endpoint"] == server.state.publisher.replay_endpoint


async def test_an_endpoint_that_is_taken_is_named(start_sim: Any) -> None:
    server = await start_sim(kv_events="tcp://127.0.0.1:*")
    taken = server.state.publisher.endpoint
    with pytest.raises(EngineError, match=f"KV-event endpoint '{taken}' can't be used"):
        await start_sim(kv_events=taken)
