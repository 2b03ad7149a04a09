"""Publishes KV events over ZMQ the way vLLM does, and answers replay requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from pointsman.core.engine_model import events as core
from pointsman.core.model.errors import ConfigError, EngineError
from pointsman.edge.wire import kv_events as wire

logger = logging.getLogger("pointsman.engines.events")

_HIGH_WATER_MARK = 100_000
_MOST_PORT, _MOST_DIGITS = 65_535, 5
_BINDING = ("*", "::", "ipc://", "inproc://", "://127.", "://localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Where and how KV events are published."""

    endpoint: str | None = None
    """ZMQ endpoint, for example `tcp://127.0.0.1:5557`; port `*` = any free one. None = no events."""
    replay_endpoint: str | None = None
    topic: str = ""
    form: wire.EventForm = wire.EventForm.MAP
    replay_batches: int = 10_000
    """Batches kept for replay."""
    dp_rank: int = 0
    """Data-parallel rank that events and metrics carry."""

    def __post_init__(self) -> None:
        if self.replay_endpoint is not None and self.endpoint is None:
            raise ConfigError("replay is set but kv_events is not: there would be nothing to replay; set kv_events")
        for name, endpoint in (("kv_events", self.endpoint), ("replay", self.replay_endpoint)):
            port = (endpoint or "").rpartition(":")[2]
            # ZMQ would take another port, the remainder, without a word.
            if port.isascii() and port.isdigit() and (len(port) > _MOST_DIGITS or int(port) > _MOST_PORT):
                raise ConfigError(f"{name} is {endpoint!r}: ports end at {_MOST_PORT}")
        if self.replay_batches < 1:
            raise ConfigError(f"replay_batches must be at least 1, not {self.replay_batches}")


class EventPublisher:
    """PUB socket for batches, ROUTER socket for replays. Lives on the event loop that opened it."""

    def __init__(self, settings: EventSettings) -> None:
        self.endpoint: str | None = settings.endpoint
        """Where a consumer connects; the actual port once opened."""
        self.replay_endpoint: str | None = settings.replay_endpoint
        self.next_seq = 0
        self.settings = settings
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=settings.replay_batches)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None

    def open(self) -> None:
        """Open the sockets; `EngineError` names the endpoint that can't be used."""
        if self.endpoint is None:
            return
        self._context = zmq.Context()
        try:
            self._pub = self._context.socket(zmq.PUB)
            self._pub.set_hwm(_HIGH_WATER_MARK)
            self.endpoint = _attach(self._pub, self.endpoint)
            if self.replay_endpoint is not None:
                self._router = self._context.socket(zmq.ROUTER)
                # A replay is one message a batch: none of them may be dropped.
                self._router.set_hwm(0)
                self.replay_endpoint = _attach(self._router, self.replay_endpoint)
                asyncio.get_running_loop().add_reader(self._router.fileno(), self._answer_replays)
        except EngineError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets; what is not delivered yet is dropped."""
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.fileno())
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._pub = self._router = None

    def restart(self) -> None:
        """Begin again at sequence number 0 with an empty replay buffer, as a new process would."""
        self.next_seq = 0
        self._buffer.clear()

    def publish(self, events: Sequence[core.KvEvent]) -> None:
        """Send one batch with the next sequence number."""
        if self._pub is None or not events:
            return
        settings = self.settings
        batch = wire.EventBatch(time.time(), tuple(self._to_wire(event) for event in events), settings.dp_rank)
        payload = wire.encode_batch(batch, settings.form)
        seq = self.next_seq
        self.next_seq += 1
        self._buffer.append((seq, payload))
        self.emit(wire.encode_frames(settings.topic, seq, payload))

    def emit(self, frames: list[bytes]) -> None:
        """Send a message, if the sockets are open."""
        if self._pub is not None:
            self._pub.send_multipart(frames, zmq.NOBLOCK)

    @property
    def answers_replays(self) -> bool:
        """Requests for a replay are answered."""
        return True

    def _answer_replays(self) -> None:
        router = self._router
        # The descriptor is edge triggered: read until nothing is left.
        while router is not None and int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames: list[bytes] = router.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 3 or len(frames[2]) != 8:
                logger.warning("replay request with %d frames ignored: expected an empty one and 8 bytes", len(frames))
                continue
            if self.answers_replays:
                self._replay(router, frames[0], int.from_bytes(frames[2], "big"))

    def _replay(self, router: zmq.Socket[bytes], identity: bytes, start_seq: int) -> None:
        for seq, payload in self._buffer:
            if seq >= start_seq:
                router.send_multipart([identity, b"", seq.to_bytes(8, "big"), payload], zmq.NOBLOCK)
        router.send_multipart([identity, b"", wire.END_OF_REPLAY.to_bytes(8, "big"), b""], zmq.NOBLOCK)

    def _to_wire(self, event: core.KvEvent) -> wire.KvEvent:
        # One kind of attention is group 0; the older array form does not know groups.
        group = None if self.settings.form is wire.EventForm.ARRAY else 0
        if isinstance(event, core.BlockStored):
            return wire.BlockStored(
                block_hashes=event.block_hashes,
                parent_block_hash=event.parent_block_hash,
                token_ids=event.token_ids,
                block_size=event.block_size,
                medium=event.medium,
                lora_name=event.lora_name,
                extra_keys=_extra_keys(event),
                group_idx=group,
            )
        if isinstance(event, core.BlockRemoved):
            return wire.BlockRemoved(event.block_hashes, medium=event.medium, group_idx=group)
        return wire.AllBlocksCleared()


def _extra_keys(event: core.BlockStored) -> tuple[tuple[object, ...] | None, ...] | None:
    if event.lora_name is None and event.cache_salt is None:
        return None
    adapter: tuple[object, ...] = (event.lora_name,) if event.lora_name is not None else ()
    first = adapter if event.cache_salt is None else (*adapter, event.cache_salt)
    rest = len(event.block_hashes) - 1
    return (first or None, *([adapter or None] * rest))


def _attach(socket: Any, endpoint: str) -> str:
    """Bind where the address is a wildcard or of this machine, otherwise connect; returns the actual endpoint."""
    try:
        if any(mark in endpoint for mark in _BINDING):
            socket.bind(endpoint)
            return str(socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0"))
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise EngineError(f"KV-event endpoint {endpoint!r} can't be used: {error}; choose another one") from error
    return endpoint
