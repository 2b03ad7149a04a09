"""KvFeed: the KV events of one engine rank, from its sockets to the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import zmq

from pointsman.core.ledger.events import KvEvent
from pointsman.edge.cluster.kv_applier import Clock, KvApplier
from pointsman.edge.cluster.kv_replay import ReplayError, replay
from pointsman.edge.cluster.kv_sequence import Ask, KvSequence
from pointsman.edge.cluster.kv_socket import Connections, ZmqReader
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.cluster.kv_status import KvFeedStatus
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.wire.kv_events import KvEventError, decode_frames

_log = logging.getLogger("pointsman.cluster")

HIGH_WATER_MARK = 100_000
"""Messages that wait at our socket; what comes beyond them is dropped, which shows as a gap."""
_NO_REPLAY = (
    "event batches are missing, and the engine has no replay_endpoint in its --kv-events-config to ask for them"
)
_LONGEST_DRAIN_S = 1.0

Context = zmq.Context[zmq.Socket[bytes]]


class KvFeed:
    """Runs from its making, inside a running event loop, until `close`; `emit` hears nothing after that.

    `wall_s` is the clock that engines stamp their batches by: seconds since the epoch.
    """

    def __init__(
        self,
        source: KvSource,
        context: Context,
        emit: Callable[[KvEvent], None],
        now_ms: Clock,
        timing: KvTiming,
        wall_s: Clock = time.time,
    ) -> None:
        self.source = source
        self._context = context
        self._tell_ledger = emit
        self._now_ms = now_ms
        self._timing = timing
        self._closed = False
        self._sequence = KvSequence(replay=source.replay_endpoint is not None)
        self._applier = KvApplier(source, self._sequence, self._emit, self._ask, now_ms, wall_s)
        self._awake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replay: asyncio.Task[None] | None = None
        self._subscribed_s: float | None = None
        """When the engine will have heard of a new subscription."""
        self._give_up: tuple[float, int] | None = None
        """When late batches are not waited for any more, and the turn."""
        self._unconnected_s: float | None = None
        self._silent_s = 0.0
        self._spawn(self._run(), f"KV events of {source.worker}")

    @property
    def status(self) -> KvFeedStatus:
        """For people."""
        counts, applier = self._sequence.counts, self._applier
        return KvFeedStatus(
            worker=self.source.worker,
            state=applier.standing.state,
            reason=applier.standing.reason,
            since_ms=applier.standing.since_ms,
            endpoint=self.source.endpoint,
            last_seq=applier.last_seq,
            gaps=counts.gaps,
            losses=counts.losses,
            replays=counts.replays,
            restarts=counts.restarts,
            duplicates=counts.duplicates,
            batches=applier.batches,
            events=applier.events,
            bytes=applier.bytes,
            unusable=applier.unusable,
            lag_s=applier.lag_s,
        )

    def close(self) -> set[asyncio.Task[None]]:
        """Stop at once. Returns the tasks that are still to be awaited: they close the sockets."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    # ---- the task

    async def _run(self) -> None:
        while True:
            try:
                live, connections = self._open()
            except zmq.ZMQError as error:
                doing = "bind" if self.source.bind else "connect to"
                reason = f"can't {doing} {self.source.endpoint}: {error}; name another endpoint"
                self._applier.standing.off(reason)
                await asyncio.sleep(self._timing.reopen_s)
                continue
            try:
                await self._follow(live, connections)
            except Exception:
                _log.exception("KV events of %s broke off for a reason that nobody expected", self.source.worker)
                self._applier.add(self._sequence.disconnected())
                await asyncio.sleep(self._timing.reopen_s)
            finally:
                connections.close()
                live.close()

    def _open(self) -> tuple[ZmqReader, Connections]:
        socket = self._context.socket(zmq.SUB)
        connections = Connections(socket, self._awake)
        try:
            socket.set_hwm(HIGH_WATER_MARK)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            socket.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            if self.source.bind:
                socket.bind(self.source.endpoint)
            else:
                socket.connect(self.source.endpoint)
        except zmq.ZMQError:
            connections.close()
            socket.close(0)
            raise
        return ZmqReader(socket, self._awake), connections

    async def _follow(self, live: ZmqReader, connections: Connections) -> None:
        self._silent_s = self._loop_s()
        self._unconnected_s = self._silent_s + self._timing.unconnected_s
        while True:
            self._awake.clear()
            self._look_at(connections)
            self._look_at_clock(connections)
            if self._advance(live):
                await asyncio.sleep(0)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        """Until something comes, or it is time for something."""
        times = [self._silent_s + self._timing.silence_s]
        times += [at_s for at_s in (self._subscribed_s, self._unconnected_s) if at_s is not None]
        times += [self._give_up[0]] if self._give_up else []
        alarm = asyncio.get_running_loop().call_at(min(times), self._awake.set)
        try:
            await self._awake.wait()
        finally:
            alarm.cancel()

    # ---- what comes in

    def _look_at(self, connections: Connections) -> None:
        made, broke = connections.read()
        if broke:
            self._subscribed_s = None
            self._applier.add(self._sequence.disconnected())
        if made:
            wait_s = self._timing.subscribe_s if self.source.replay_endpoint else 0.0
            self._subscribed_s = self._loop_s() + wait_s
            self._unconnected_s = None

    def _look_at_clock(self, connections: Connections) -> None:
        now_s = self._loop_s()
        if self._give_up is not None and now_s >= self._give_up[0]:
            turn, self._give_up = self._give_up[1], None
            self._applier.add(self._sequence.replay_failed(turn, _NO_REPLAY))
        if self._unconnected_s is not None and now_s >= self._unconnected_s:
            self._unconnected_s = None
            self._tell_unconnected()
        if now_s >= self._silent_s + self._timing.silence_s:
            self._silent_s = now_s
            if connections.any:
                self._applier.add(self._sequence.verify())

    def _advance(self, live: ZmqReader) -> bool:
        """Apply what there is, for one slice of time; True if more may be there."""
        end_s = time.perf_counter() + self._timing.slice_s
        while self._applier.work(end_s):
            frames = live.read()
            if frames is None:
                self._subscribe_if_due()
                return not self._applier.work(end_s)
            if self._subscribed_s is not None and self._loop_s() > self._subscribed_s + _LONGEST_DRAIN_S:
                self._subscribe_if_due()
            self._silent_s = self._loop_s()
            self._take(frames)
            if time.perf_counter() > end_s:
                break
        return True

    def _subscribe_if_due(self) -> None:
        """Only once nothing from before a broken connection is left at the socket: it may be of another process."""
        if self._subscribed_s is not None and self._loop_s() >= self._subscribed_s:
            self._subscribed_s = None
            self._applier.add(self._sequence.connected())

    def _take(self, frames: list[bytes]) -> None:
        try:
            message = decode_frames(frames)
        except KvEventError as error:
            # Its number is not known; that one is missing shows at the next one.
            self._applier.fault(str(error))
            return
        if not self.source.topic or message.topic == self.source.topic:
            self._applier.add(self._sequence.live(message.seq, message.payload))

    # ---- replay

    def _ask(self, ask: Ask) -> None:
        if self.source.replay_endpoint is None:
            self._give_up = (self._loop_s() + self._timing.late_s, ask.turn)
            return
        if self._replay is not None:
            self._replay.cancel()
        self._replay = self._spawn(self._fetch(self.source.replay_endpoint, ask), f"replay of {self.source.worker}")

    async def _fetch(self, endpoint: str, ask: Ask) -> None:
        def take(seq: int, payload: bytes) -> None:
            self._applier.add(self._sequence.replayed(ask.turn, seq, payload))
            self._applier.work(time.perf_counter() + self._timing.slice_s)

        try:
            await replay(self._context, endpoint, ask.start_seq, take, self._timing)
        except ReplayError as error:
            self._applier.add(self._sequence.replay_failed(ask.turn, str(error)))
        except Exception as error:
            _log.exception("replay of %s broke off for a reason that nobody expected", self.source.worker)
            self._applier.add(self._sequence.replay_failed(ask.turn, f"the replay broke off: {error}"))
        else:
            self._applier.add(self._sequence.replay_ended(ask.turn))
        self._awake.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- telling

    def _emit(self, event: KvEvent) -> None:
        if not self._closed:
            self._tell_ledger(event)

    def _tell_unconnected(self) -> None:
        where = self.source.endpoint
        if self.source.bind:
            advice = f"nobody connected to {where}; name it as endpoint in the engine's --kv-events-config"
        else:
            advice = (
                f"nobody listens at {where}; check the engine's --kv-events-config: an endpoint tcp://*:PORT listens, "
                "one with an address connects, for which the engine needs kv_events.bind in execution-group.nodes"
            )
        self._applier.standing.syncing(advice)
        _log.warning("KV events of %s: %s", self.source.worker, advice)

    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()
