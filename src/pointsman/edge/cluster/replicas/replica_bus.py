"""ReplicaBus: the Bus between front ends, over any transport that carries messages to all or to one.

Nothing is assumed of the transport but that what it delivers is whole: messages may be lost, doubled or out of order.
Whoever is new, or lost something, asks for everything, again with every heartbeat until it is there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pointsman.edge.cluster.replicas.bus import Gone, Heard, ReplicaId, Tell
from pointsman.edge.cluster.replicas.message import Message, ReplicaMessageError, frames_of, message_of
from pointsman.edge.cluster.replicas.peers import Peer
from pointsman.edge.cluster.replicas.timing import BusTiming
from pointsman.edge.configuration.etcd import DEFAULT_FLEET

_log = logging.getLogger("pointsman.cluster")

MOST_WAITING_BYTES = 4 * 2**20
"""What waits to be sent, for a few milliseconds; beyond it is dropped, and the others ask for everything."""
MOST_PEERS = 1_024
_REFUSED_LATELY_MS = 30_000
_DEAF_MS = 5_000
"""Who is heard for so long and never answered does not hear us."""

Received = Callable[[list[bytes]], None]


class Transport(Protocol):
    """Carries messages between front ends. All calls are made on the event loop and return at once."""

    async def start(self, received: Received, replica: ReplicaId) -> None:
        """From now on hand over what comes for all or for `replica`. Raises EngineError when it can't."""
        ...

    def send(self, frames: list[bytes]) -> bool:
        """Send, or drop; False: dropped."""
        ...

    async def close(self) -> None:
        """Send what is still to be sent, within a moment, and end."""
        ...


@dataclass(frozen=True, slots=True)
class _Subscriber:
    heard: Heard
    gone: Gone
    whole: Tell


class ReplicaBus:
    """Bus of one front end. Make it inside a running event loop; `now_ms` only grows."""

    def __init__(
        self,
        transport: Transport,
        now_ms: Callable[[], float],
        *,
        name: str = "",
        timing: BusTiming | None = None,
        replica: ReplicaId | None = None,
        fleet: str = DEFAULT_FLEET,
    ) -> None:
        self.replica: ReplicaId = replica or secrets.token_hex(6)
        self.name = name
        self._fleet = fleet
        self._transport = transport
        self._now_ms = now_ms
        self._timing = timing or BusTiming()
        self._topics: dict[str, _Subscriber] = {}
        self._peers: dict[ReplicaId, Peer] = {}
        self._departed: dict[ReplicaId, None] = {}
        """Said goodbye, the latest ones: what comes of them later was on another way."""
        self._refused: tuple[float, str] | None = None
        """The last message that was: when, and why."""
        self._waiting: list[tuple[str, bytes]] = []
        self._waiting_bytes = 0
        self._sequence = 0
        self._sent_ms = float("-inf")
        self._flush: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._beat_ms = now_ms()
        self._said: set[str] = set()
        self.counts: Counter[str] = Counter()
        """Messages by what became of them: sent, received, dropped, refused; gaps, wholes, gone."""

    # ---- Bus

    def publish(self, topic: str, payload: bytes) -> None:
        """Tell all others within `batch_s`."""
        if self._beat is None:
            return  # not started, or closed: who comes asks for everything
        if self._waiting_bytes + len(payload) > MOST_WAITING_BYTES:
            self._drop(f"more than {MOST_WAITING_BYTES >> 20} MiB wait to be told")
            return
        self._waiting.append((topic, payload))
        self._waiting_bytes += len(payload)
        self._flush_soon()

    def subscribe(self, topic: str, heard: Heard, gone: Gone, whole: Tell) -> None:
        """Each topic has one subscriber. Raises ValueError for a second one."""
        if topic in self._topics:
            raise ValueError(f"topic {topic!r} has a subscriber already")
        self._topics[topic] = _Subscriber(heard, gone, whole)

    # ---- life

    async def start(self) -> None:
        """Speak and listen. Raises EngineError when the transport can't."""
        await self._transport.start(self._received, self.replica)
        self._beat_again()

    async def close(self) -> None:
        """Say goodbye: what we had is free for the others at once."""
        if self._beat is None:
            return
        self._beat.cancel()
        self._beat = None
        self._send(bye=True)
        await self._transport.close()

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Those that are there, in the order in which they came; not to be changed."""
        return tuple(self._peers.values())

    @property
    def refused_lately(self) -> str | None:
        """Why the last message that could not be read was refused, if that was within half a minute."""
        if self._refused is None or self._now_ms() - self._refused[0] > _REFUSED_LATELY_MS:
            return None
        return self._refused[1]

    @property
    def deaf(self) -> str | None:
        """Who is heard and does not hear us, and why that may be."""
        now_ms = self._now_ms()
        names = [peer.name for peer in self._peers.values() if not peer.wholes and now_ms - peer.since_ms > _DEAF_MS]
        if not names:
            return None
        return (
            f"{', '.join(names)} never answered: is the place of this front end ({self.name}) among its replicas.peers?"
        )

    # ---- sending

    def _flush_soon(self) -> None:
        if self._flush is None and self._beat is not None:
            wait_s = self._timing.batch_s - (self._now_ms() - self._sent_ms) / 1000
            self._flush = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._send)

    def _send(self, *, bye: bool = False) -> None:
        """Everything that waits, to all."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        parts, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._sequence += 1
        self._sent_ms = self._now_ms()
        asks = [peer.replica for peer in self._peers.values() if peer.wants_whole]
        self._hand_over(self._message(parts, asks=asks, bye=bye))

    def _send_whole(self, peer: Peer) -> None:
        now_ms = self._now_ms()
        if now_ms - peer.answered_ms < 1000 * self._timing.answer_every_s:
            return
        peer.answered_ms = now_ms
        if self._waiting:
            self._send()  # what was told before comes before
        told = ((topic, subscriber.whole()) for topic, subscriber in self._topics.items())
        parts = [(topic, payload) for topic, payload in told if payload is not None]
        self._hand_over(self._message(parts, whole_for=peer.replica))

    def _message(
        self,
        parts: list[tuple[str, bytes]],
        *,
        whole_for: ReplicaId = "",
        asks: Sequence[ReplicaId] = (),
        bye: bool = False,
    ) -> Message:
        return Message(
            replica=self.replica,
            name=self.name,
            sequence=self._sequence,
            parts=parts,
            whole_for=whole_for,
            asks=list(asks),
            bye=bye,
            fleet=self._fleet,
        )

    def _hand_over(self, message: Message) -> None:
        sent = self._transport.send(frames_of(message))
        self.counts["sent" if sent else "dropped"] += 1

    def _drop(self, why: str) -> None:
        """The next number is missing, so everybody asks for everything."""
        self._sequence += 1
        self.counts["dropped"] += 1
        self._say_once("dropped", f"for other replicas {why}: dropped, and told as a whole later")

    def _beat_again(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._sent_ms >= 900 * self._timing.heartbeat_s:
            self._send()
        if now_ms - self._beat_ms < 500 * self._timing.lost_after_s:
            # Else it was this process that stood still: what the others said meanwhile is still to be read.
            self._look_for_lost(now_ms)
        self._beat_ms = now_ms
        every_s = min(self._timing.heartbeat_s, self._timing.lost_after_s / 8)
        self._beat = asyncio.get_running_loop().call_later(every_s, self._beat_again)

    # ---- hearing

    def _received(self, frames: list[bytes]) -> None:
        try:
            message = message_of(frames)
        except ReplicaMessageError as error:
            self._refuse("refused", f"a replica's message is refused: {error}")
            return
        if message.fleet != self._fleet:
            self._refuse(
                "fleet",
                f"replica {message.name} is of the fleet {message.fleet[:128]!r}, this one of {self._fleet!r}: it is "
                "not heard; take it out of replicas.peers, or give both the same name in etcd.fleet",
            )
            return
        if message.replica == self.replica or self._beat is None or message.whole_for not in ("", self.replica):
            return
        self.counts["received"] += 1
        if message.replica in self._departed:
            return
        if message.bye:
            self._departed[message.replica] = None
            if len(self._departed) > MOST_PEERS:
                del self._departed[next(iter(self._departed))]
            self._lose(message.replica, "said goodbye")
            return
        peer = self._peer(message)
        if peer is None:
            return
        gaps, wanted = peer.gaps, peer.wants_whole
        if peer.takes(message, self._now_ms()):
            self._deliver(message)
        self.counts["gaps"] += peer.gaps - gaps
        self.counts["wholes"] += bool(message.whole_for) and wanted and not peer.wants_whole
        if peer.wants_whole and (not wanted or peer.gaps > gaps):
            self._flush_soon()
        if self.replica in message.asks:
            self._send_whole(peer)

    def _refuse(self, kind: str, why: str) -> None:
        self.counts["refused"] += 1
        self._refused = (self._now_ms(), why)
        self._say_once(kind, why)

    def _peer(self, message: Message) -> Peer | None:
        peer = self._peers.get(message.replica)
        if peer is not None:
            peer.name = message.name
            return peer
        if len(self._peers) >= MOST_PEERS:
            self.counts["refused"] += 1
            self._say_once("too many", f"more than {MOST_PEERS} replicas: those that come now are not heard")
            return None
        now_ms = self._now_ms()
        # What it said before was not heard, this message was.
        peer = Peer(message.replica, message.name, message.sequence - 1, now_ms, now_ms)
        self._peers[message.replica] = peer
        _log.info("replica %s (%s) is there", message.replica, message.name)
        self._flush_soon()
        return peer

    def _deliver(self, message: Message) -> None:
        for topic, payload in message.parts:
            subscriber = self._topics.get(topic)
            if subscriber is None:
                continue  # a part of this front end that is off
            try:
                subscriber.heard(message.replica, payload)
            except Exception as error:
                self.counts["refused"] += 1
                self._say_once(topic, f"what replica {message.replica} told of {topic!r} is refused: {error!r}")

    def _look_for_lost(self, now_ms: float) -> None:
        for peer in list(self._peers.values()):
            silent_ms = now_ms - peer.heard_ms
            if silent_ms > 1000 * self._timing.lost_after_s:
                self._lose(peer.replica, f"not heard for {silent_ms / 1000:.1f} s")
        if (deaf := self.deaf) is not None:
            self._say_once("deaf", f"replicas: {deaf}", "pointsman_replicas")

    def _lose(self, replica: ReplicaId, why: str) -> None:
        peer = self._peers.pop(replica, None)
        if peer is None:
            return
        self.counts["gone"] += 1
        _log.info("replica %s (%s) is gone: %s; what it had in flight is free", replica, peer.name, why)
        for subscriber in self._topics.values():
            subscriber.gone(replica)

    def _say_once(self, kind: str, line: str, metric: str = "pointsman_replica_messages_total") -> None:
        """Of each kind the first; the metric counts all."""
        if kind not in self._said:
            self._said.add(kind)
            _log.warning("%s (said once; counted in %s)", line, metric)
