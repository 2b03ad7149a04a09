"""ZmqTransport: messages between replicas over ZeroMQ. Each publishes at its own places and subscribes at all others'.

Between hosts both sides prove that they know the fleet's secret, and everything is encrypted (CURVE): what is told are
hashes of prompts and names of tenants. All replicas have one pair of keys, made from the secret, so whoever does not
know the secret knows neither the public key that a client has to know nor the private one that a server has to have.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from pointsman.core.model.errors import EngineError
from pointsman.edge.cluster.replicas.bus import ReplicaId
from pointsman.edge.cluster.replicas.message import ALL, MOST_BYTES, PARTS, TO_ONE, address
from pointsman.edge.cluster.replicas.replica_bus import Received

_log = logging.getLogger("pointsman.cluster")

_MOST_MESSAGES = 4_096
"""That wait at a socket for a replica; what comes then is dropped, and it asks for everything later."""
_SLICE_S = 0.005
"""So long the event loop reads what came, then it lets others."""
_BIND_AGAIN_S = 0.1
_LINGER_MS = 200
"""For the goodbye."""
_RECONNECT_MS, _RECONNECT_MOST_MS = 100, 2_000
_PING_MS, _PING_LOST_MS = 1_000, 3_000
"""Who only hears never notices that the other side is gone without a word (a host that lost power, a network that was
cut): it has to ask. What waits for a side that stands still is dropped with its connection."""
_CONNECT_MS, _HANDSHAKE_MS = 2_000, 5_000
_HUNG_UP = (errno.EPIPE, errno.ECONNRESET)
_OURS, _ANOTHERS = "at our port", "at another's port"
_REFUSED_LATELY_S = 30.0
_REFUSED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
_CONTEXT = b"pointsman replicas, keys of the fleet"

Context = zmq.Context[zmq.Socket[bytes]]


class ZmqTransport:
    """Of one front end.

    Args:
        listen: endpoints that others can subscribe at, `tcp://host:port` or `ipc://path`.
        peers: endpoints of others; one's own may be among them.
        secret: known to all replicas; None: nobody has to prove anything, for sockets that only this user can reach.
        patient: a place that is taken is tried again until it is free. Until then whoever has it, if it is one of ours
            and hears us elsewhere, passes on what we say to those who listen there.
    """

    def __init__(
        self,
        listen: Collection[str],
        peers: Iterable[str] = (),
        *,
        secret: str | None = None,
        patient: bool = False,
    ) -> None:
        self._patient = patient
        self._bind_again: dict[str, asyncio.TimerHandle] = {}
        self._bound: set[bytes] = set()
        self._passes_on = False
        self.port: int | None = None
        """Of the first TCP endpoint."""
        self._listen = tuple(listen)
        self._peers = dict.fromkeys(peers)
        self._keys = None if secret is None else fleet_keys(secret)
        self._context: Context | None = None
        self._publisher: zmq.Socket[bytes] | None = None
        self._subscriber: zmq.Socket[bytes] | None = None
        self._monitors: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes], str]] = []
        self._received: Received | None = None
        self._replica: ReplicaId = ""
        self._again: asyncio.Handle | None = None
        self.counts: Counter[str] = Counter()
        """Connections that were refused, by side: ours, theirs."""
        self._refused: tuple[float, str] | None = None
        """The last one: when, and why."""

    async def start(self, received: Received, replica: ReplicaId) -> None:
        """Listen and connect. Raises EngineError that names the place that can't be used."""
        self._received, self._replica = received, replica
        self._context = context = zmq.Context()
        self._publisher = publisher = self._socket(context, zmq.PUB)
        self._subscriber = subscriber = self._socket(context, zmq.SUB)
        if self._keys is not None:
            publisher.curve_server = True
        for endpoint in self._listen:
            try:
                self._bind(publisher, endpoint)
            except zmq.ZMQError as error:
                await self.close()
                raise EngineError(
                    f"replicas: can't listen at {endpoint}: {zmq.strerror(error.errno or 0)}; name another place in "
                    "replicas.listen"
                ) from None
        for topic in (ALL, address(replica)):
            subscriber.setsockopt(zmq.SUBSCRIBE, topic)
        for peer in tuple(self._peers):
            try:
                subscriber.connect(peer)
            except zmq.ZMQError as error:
                await self.close()
                raise EngineError(f"replicas: can't connect to {peer}: {error}; correct replicas.peers") from None
        loop = asyncio.get_running_loop()
        for socket in (subscriber, *(monitor for _, monitor, _ in self._monitors)):
            loop.add_reader(socket.fileno(), self._read)
        self._read()

    def follow(self, peers: Iterable[str]) -> None:
        """Subscribe at these places from now on, and at no others. What can't be used is left out with a line."""
        wanted = dict.fromkeys(peers)
        if self._subscriber is None:
            self._peers = wanted
            return
        for peer in [known for known in self._peers if known not in wanted]:
            del self._peers[peer]
            with suppress(zmq.ZMQError):  # it was not connected
                self._subscriber.disconnect(peer)
        for peer in [new for new in wanted if new not in self._peers]:
            try:
                self._subscriber.connect(peer)
            except zmq.ZMQError as error:
                _log.warning("replicas: can't connect to %s: %s; it is not heard", peer, error)
            else:
                self._peers[peer] = None
        self._read_soon()  # what came meanwhile is announced no more

    @property
    def waits_for(self) -> str | None:
        """A place of ours that somebody else has."""
        return next(iter(self._bind_again), None)

    @property
    def refused_lately(self) -> str | None:
        """Why the last connection was refused, if that was within half a minute."""
        if self._refused is None or time.monotonic() - self._refused[0] > _REFUSED_LATELY_S:
            return None
        return self._refused[1]

    def send(self, frames: list[bytes]) -> bool:
        """To all that are connected. What a slow one does not take is dropped for it alone, and it will notice."""
        if self._publisher is None:
            return False
        if self._bind_again:
            frames = [*frames, *(place.encode() for place in self._bind_again)]
        try:
            self._publisher.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.ZMQError:
            return False
        return True

    async def close(self) -> None:
        """Close all; what was sent last gets a moment to go out."""
        loop = asyncio.get_running_loop()
        for handle in (self._again, *self._bind_again.values()):
            if handle is not None:
                handle.cancel()
        self._bind_again.clear()
        for watched, monitor, _ in self._monitors:
            loop.remove_reader(monitor.fileno())
            watched.disable_monitor()
            monitor.close(0)
        self._monitors.clear()
        if self._subscriber is not None:
            loop.remove_reader(self._subscriber.fileno())
            self._subscriber.close(0)
            self._subscriber = None
        if self._publisher is not None:
            self._publisher.close(_LINGER_MS)
            self._publisher = None
        if self._context is not None:
            context, self._context = self._context, None
            await asyncio.to_thread(context.term)

    # ---- inside

    def _bind(self, publisher: zmq.Socket[bytes], endpoint: str) -> None:
        waiting = endpoint in self._bind_again
        try:
            publisher.bind(endpoint)
        except zmq.ZMQError as error:
            if not waiting and (error.errno != errno.EADDRINUSE or not self._patient):
                raise
            if not waiting:
                _log.warning(
                    "replicas: %s is taken: waiting for it; unless it is of the front end that this one replaces, name "
                    "another place in replicas.listen",
                    endpoint,
                )
            loop = asyncio.get_running_loop()
            self._bind_again[endpoint] = loop.call_later(_BIND_AGAIN_S, self._bind, publisher, endpoint)
            return
        if self._bind_again.pop(endpoint, None) is not None:
            _log.info("replicas: listening at %s now", endpoint)
        self._bound.add(endpoint.encode())
        if self.port is None and endpoint.startswith("tcp:"):
            bound = publisher.getsockopt(zmq.LAST_ENDPOINT)
            assert isinstance(bound, bytes)
            self.port = int(bound.rstrip(b"\0").rpartition(b":")[2])

    def _socket(self, context: Context, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, _MOST_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, _MOST_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PING_LOST_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS)
        if self._keys is not None:
            public, private = self._keys
            socket.curve_publickey, socket.curve_secretkey = public, private
            if kind == zmq.SUB:
                socket.curve_serverkey = public
        side = _OURS if kind == zmq.PUB else _ANOTHERS
        self._monitors.append((socket, socket.get_monitor_socket(_REFUSED), side))
        return socket

    def _read_soon(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        """Everything that came, or as much as fits into a slice of time."""
        self._again = None
        end_s = time.perf_counter() + _SLICE_S
        while self._subscriber is not None and self._received is not None:
            try:
                frames = self._subscriber.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._received(self._passed_on(frames) if len(frames) > PARTS else frames)
            if time.perf_counter() > end_s:
                self._read_soon()
                break
        for _, monitor, side in self._monitors:
            self._read_monitor(monitor, side)

    def _passed_on(self, frames: list[bytes]) -> list[bytes]:
        """Of one that waits for a place that we have: who hears us there has to hear it as well."""
        message, places = frames[:PARTS], frames[PARTS:]
        if self._subscriber is not None and not self._bound.isdisjoint(places):
            if not self._passes_on:
                self._passes_on = True
                self._subscriber.setsockopt(zmq.SUBSCRIBE, TO_ONE)
            self.send(message)
        return message

    def _read_monitor(self, monitor: zmq.Socket[bytes], side: str) -> None:
        while True:
            try:
                told = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            place = told["endpoint"].decode(errors="replace")
            if told["event"] == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and (
                side == _OURS or told["value"] not in _HUNG_UP
            ):
                # At our port: somebody looked whether it is open. At another's: time ran out.
                if side == _ANOTHERS:
                    silent = "says nothing: it stands still, or is no pointsman"
                    self._refused = (time.monotonic(), f"who listens at {place} {silent}")
                continue
            self.counts[side] += 1
            secret = "one of both has another replicas.secret, or none" if self._keys else "it has a replicas.secret"
            why = f"a connection {side} ({place}) is refused: {secret}"
            self._refused = (time.monotonic(), why)
            if self.counts.total() == 1:
                _log.warning("replicas: %s (said once; counted in pointsman_replica_connections_refused_total)", why)


def fleet_keys(secret: str) -> tuple[bytes, bytes]:
    """Public and private CURVE key of all replicas that know the secret."""
    private = z85.encode(hashlib.scrypt(secret.encode(), salt=_CONTEXT, n=2**14, r=8, p=1, dklen=32))
    return zmq.curve_public(private), private
