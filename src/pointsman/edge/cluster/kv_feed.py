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
from pointsman.edge.cluster.kv_backlog import KvBacklog
from pointsman.edge.cluster.kv_limits import KvLimits
from pointsman.edge.cluster.kv_replay import ReplayError, replay
from pointsman.edge.cluster.kv_sequence import Ask, KvSequence
from pointsman.edge.cluster.kv_socket import Connections, ZmqReader
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.cluster.kv_status import KvFeedStatus
from pointsman.edge.cluster.kv_timing import KvTiming
from pointsman.edge.wire.kv_events import KvEventError, decode_frames

_log = logging.getLogger("pointsman.cluster")

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
        limits: KvLimits | None = None,
        wall_s: Clock = time.time,
    ) -> None:
        self.source = source
        self._context = context
        self._tell_ledger = emit
        self._now_ms = now_ms
        self._timing = timing
        self._limits = limits or KvLimits()
        self._closed = False
        half = self._limits.waiting_bytes // 2
        self._backlog = KvBacklog(half)
        self._dropped = 0
        self._sequence = KvSequence(replay=source.replay_endpoint is not None, held_bytes=half)
        self._applier = KvApplier(source, self._sequence, self._emit, self._ask, now_ms, wall_s)
        self._awake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replay: asyncio.Task[None] | None = None
        self._subscribed_s: float | None = None
        """When the engine will have heard of a new subscription."""
        self._give_up: tuple[float, int] | None = None
        """When late batches are not waited for any more, and the turn."""
        self._taken_s: float | None = None
        """When the live batch came that is being applied."""
        self._doubted_s: float | None = None
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
            dropped=self._dropped,
            batches=applier.batches,
            events=applier.events,
            bytes=applier.bytes,
            unusable=applier.unusable,
            lag_s=applier.lag_s,
        )

    def doubted(self) -> bool:
        """What the engine told does not fit together: verify it by a replay.

        False: not now. It was doubted a short while ago, is being looked at anyhow, or can't be asked.
        """
        now_s = self._loop_s()
        if self._doubted_s is not None and now_s < self._doubted_s + self._timing.doubt_s:
            return False
        self._doubted_s = now_s
        if self.source.replay_endpoint is None:
            _log.info("KV events of %s are doubted, and without replay_endpoint can't be verified", self.source.worker)
            return False
        steps = self._sequence.doubt()
        self._applier.add(steps)
        self._awake.set()
        return bool(steps)

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
                self._backlog = KvBacklog(self._limits.waiting_bytes // 2)

    def _open(self) -> tuple[ZmqReader, Connections]:
        socket = self._context.socket(zmq.SUB)
        connections = Connections(socket, self._awake)
        try:
            socket.setsockopt(zmq.RCVHWM, self._limits.live_messages)
            socket.setsockopt(zmq.MAXMSGSIZE, self._limits.waiting_bytes)
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
        """Read and apply what there is, for one slice of time each; True if more may be there."""
        more = self._read(live, time.perf_counter() + self._timing.slice_s)
        self._look_behind()
        end_s = time.perf_counter() + self._timing.slice_s
        while self._applier.work(end_s):
            self._taken_s = None
            if self._subscribed_s is not None and self._loop_s() > self._subscribed_s + _LONGEST_DRAIN_S:
                self._subscribe_if_due()
            elif not self._backlog:
                self._look_behind()
                if not more:
                    self._subscribe_if_due()
                return more or not self._applier.work(end_s)
            else:
                waiting = self._backlog.pop()
                self._silent_s, self._taken_s = self._loop_s(), waiting.came_s
                self._applier.add(self._sequence.live(waiting.seq, waiting.payload))
            if time.perf_counter() > end_s:
                break
        return True

    def _read(self, live: ZmqReader, end_s: float) -> bool:
        """Move what is at the socket to the backlog: only there its size is known. True: there may be more."""
        now_s = self._loop_s()
        while (frames := live.read()) is not None:
            self._silent_s = now_s
            self._take(frames, now_s)
            if time.perf_counter() > end_s:
                return True
        return False

    def _subscribe_if_due(self) -> None:
        """Only once nothing from before a broken connection is left at the socket: it may be of another process."""
        if self._subscribed_s is not None and self._loop_s() >= self._subscribed_s:
            self._subscribed_s = None
            self._applier.add(self._sequence.connected())

    def _take(self, frames: list[bytes], now_s: float) -> None:
        try:
            message = decode_frames(frames)
        except KvEventError as error:
            # Its number is not known; that one is missing shows at the next one.
            self._applier.fault(str(error))
            return
        if self.source.topic and message.topic != self.source.topic:
            return
        self._backlog.add(message.seq, message.payload, now_s)
        if self._backlog.full:
            self._drop()

    def _drop(self) -> None:
        first, self._dropped = not self._dropped, self._dropped + self._backlog.drop()
        if first and self._dropped:
            mib = self._limits.waiting_bytes / 2 / 2**20
            _log.warning(
                "KV events of %s come faster than they can be applied: what waits beyond %g MiB is dropped, and asked "
                "for again where the engine has a replay_endpoint (said once)",
                self.source.worker,
                mib,
            )

    def _look_behind(self) -> None:
        """Too much waits: the view is not to be used until all of it is applied."""
        came_s = self._taken_s if self._taken_s is not None else self._backlog.oldest_s
        if came_s is None:
            self._applier.behind = ""
            return
        behind_s, batches = self._loop_s() - came_s, len(self._backlog)
        limits = self._limits
        if not self._applier.behind and (batches > limits.behind_batches or behind_s > limits.behind_s):
            self._applier.behind = f"behind by {batches} event batches and {behind_s:.1f} s"
            if not self._sequence.syncing:
                self._applier.standing.syncing(self._applier.behind)

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

        work, timing, limits = self._applier.work, self._timing, self._limits
        try:
            whole = await replay(self._context, endpoint, ask.start_seq, take, work, timing, limits)
        except ReplayError as error:
            self._applier.add(self._sequence.replay_failed(ask.turn, str(error)))
        except Exception as error:
            _log.exception("replay of %s broke off for a reason that nobody expected", self.source.worker)
            self._applier.add(self._sequence.replay_failed(ask.turn, f"the replay broke off: {error}"))
        else:
            self._applier.add(self._sequence.replay_ended(ask.turn, whole=whole))
        finally:
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
