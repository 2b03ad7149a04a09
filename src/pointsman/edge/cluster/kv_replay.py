"""Replay: asks an engine once more for batches that it keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import zmq

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.cluster.kv_socket import UNLIMITED, ZmqReader
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.wire.kv_events import KvEventError, decode_replay_reply, encode_replay_request

Take = Callable[[int, bytes], None]
"""Gets sequence number and payload of each batch."""


class ReplayError(PointsmanError):
    """A replay did not come, after all attempts."""


async def replay(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start_seq: int, take: Take, timing: KvTiming
) -> None:
    """Hands all batches that the engine keeps from `start_seq` on to `take`; each attempt begins there again.

    Raises ReplayError.
    """
    reason = "no attempt"
    pause_s = timing.first_pause_s
    for attempt in range(timing.replay_attempts):
        if attempt:
            await asyncio.sleep(pause_s)
            pause_s *= 2
        try:
            await _once(context, endpoint, start_seq, take, timing)
            return
        except TimeoutError:
            reason = f"nothing came for {timing.replay_silence_s:g} s"
        except (KvEventError, zmq.ZMQError) as error:
            reason = str(error)
    raise ReplayError(
        f"the replay from {endpoint} failed {timing.replay_attempts} times: {reason}; "
        "check replay_endpoint in the engine's --kv-events-config"
    )


async def _once(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start_seq: int, take: Take, timing: KvTiming
) -> None:
    # A socket an attempt: what a late answer to an earlier one brings goes nowhere.
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVHWM, UNLIMITED)
    socket.setsockopt(zmq.IPV6, 1)
    readable = asyncio.Event()
    reader = ZmqReader(socket, readable)
    try:
        socket.connect(endpoint)
        reader.send(encode_replay_request(start_seq))
        await _read(reader, readable, take, timing)
    finally:
        reader.close()


async def _read(reader: ZmqReader, readable: asyncio.Event, take: Take, timing: KvTiming) -> None:
    slice_end = time.perf_counter() + timing.slice_s
    while True:
        readable.clear()
        while (frames := reader.read()) is not None:
            reply = decode_replay_reply(frames)
            if reply is None:
                return
            take(*reply)
            if time.perf_counter() > slice_end:
                await asyncio.sleep(0)
                slice_end = time.perf_counter() + timing.slice_s
        async with asyncio.timeout(timing.replay_silence_s):
            await readable.wait()
