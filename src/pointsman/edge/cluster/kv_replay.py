"""Replay: asks an engine once more for batches that it keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import zmq

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.cluster.kv_backlog import KvBacklog
from pointsman.edge.cluster.kv_limits import KvLimits
from pointsman.edge.cluster.kv_socket import ZmqReader
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.wire.kv_events import KvEventError, decode_replay_reply, encode_replay_request

Take = Callable[[int, bytes], None]
"""Gets sequence number and payload of each batch."""
Work = Callable[[float], bool]
"""Goes on with what was taken until a time of time.perf_counter(); False: there is more to do before the next one."""


class ReplayError(PointsmanError):
    """A replay did not come, after all attempts."""


async def replay(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    start_seq: int,
    take: Take,
    work: Work,
    timing: KvTiming,
    limits: KvLimits,
) -> bool:
    """Hands the batches that the engine keeps from `start_seq` on to `take`; each attempt begins there again.

    False: only some of them, as they come faster than they are worked off; ask for the rest. Raises ReplayError.
    """
    reason = "no attempt"
    pause_s = timing.first_pause_s
    for attempt in range(timing.replay_attempts):
        if attempt:
            await asyncio.sleep(pause_s)
            pause_s *= 2
        try:
            return await _once(context, endpoint, start_seq, _Replies(take, work, timing, limits))
        except TimeoutError:
            reason = f"nothing came for {timing.replay_silence_s:g} s"
        except (KvEventError, zmq.ZMQError) as error:
            reason = str(error)
    raise ReplayError(
        f"the replay from {endpoint} failed {timing.replay_attempts} times: {reason}; "
        "check replay_endpoint in the engine's --kv-events-config"
    )


class _Replies:
    """What one attempt brings: read as it comes, as engines drop what is not read, and handed on as it can be used."""

    def __init__(self, take: Take, work: Work, timing: KvTiming, limits: KvLimits) -> None:
        self.limits = limits
        self._take = take
        self._work = work
        self._timing = timing
        self._backlog = KvBacklog(limits.waiting_bytes // 2)
        self._ended = False

    async def read(self, reader: ZmqReader, readable: asyncio.Event) -> bool:
        """Until the end (True) or until too much waits (False); then some still do."""
        while True:
            readable.clear()
            more = self._read_some(reader)
            if self._ended or self._backlog.full:
                return self._ended
            if not self._use_some() or more:
                await asyncio.sleep(0)
                continue
            async with asyncio.timeout(self._timing.replay_silence_s):
                await readable.wait()

    async def use_all(self) -> None:
        """Hand on what still waits."""
        while True:
            if self._use_some():
                return
            await asyncio.sleep(0)

    def _read_some(self, reader: ZmqReader) -> bool:
        """For one slice of time; True: there may be more."""
        end_s = time.perf_counter() + self._timing.slice_s
        while (frames := reader.read()) is not None:
            reply = decode_replay_reply(frames)
            if reply is None:
                self._ended = True
                return False
            self._backlog.add(*reply, 0.0)
            if self._backlog.full or time.perf_counter() > end_s:
                return True
        return False

    def _use_some(self) -> bool:
        """For one slice of time; False: there is more."""
        end_s = time.perf_counter() + self._timing.slice_s
        while self._work(end_s):
            if not self._backlog:
                return True
            waiting = self._backlog.pop()
            self._take(waiting.seq, waiting.payload)
            if time.perf_counter() > end_s:
                break
        return False


async def _once(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start_seq: int, replies: _Replies) -> bool:
    # A socket an attempt: what a late answer to an earlier one brings goes nowhere.
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVHWM, replies.limits.replay_messages)
    socket.setsockopt(zmq.MAXMSGSIZE, replies.limits.waiting_bytes)
    socket.setsockopt(zmq.IPV6, 1)
    readable = asyncio.Event()
    reader = ZmqReader(socket, readable)
    try:
        socket.connect(endpoint)
        reader.send(encode_replay_request(start_seq))
        whole = await replies.read(reader, readable)
    finally:
        reader.close()
    await replies.use_all()
    return whole
