"""Message: what one front end sends the others at a time, and how it goes over the wire.

A message is three parts: whom it is for, the version, and the rest as MessagePack. Whoever speaks another version can
tell without reading on.
"""

from __future__ import annotations

import msgspec

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.cluster.replicas.bus import ReplicaId
from pointsman.edge.configuration.etcd import DEFAULT_FLEET

VERSION = b"pointsman-replicas-1"
MOST_BYTES = 16 * 2**20
"""Of one message."""
ALL = b"*"
TO_ONE = b"@"
PARTS = 3


class ReplicaMessageError(PointsmanError):
    """What came is no message of a replica of this version."""


class Message(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Several topics' payloads at once; without any it says only that the replica is there."""

    replica: ReplicaId
    name: str
    """For people: where it can be found."""
    sequence: int
    """Number of the last message to all, this one included: what is missing in between was lost."""
    parts: list[tuple[str, bytes]]
    """(topic, payload), in the order in which they were told."""
    whole_for: ReplicaId = ""
    """The parts are all that this replica has to know who did not hear it before; "": to all, what is new."""
    asks: list[ReplicaId] = []
    """Replicas whose whole state is wanted."""
    bye: bool = False
    """Its last message."""
    fleet: str = DEFAULT_FLEET
    """Whose front end it is: names of workers and tenants mean something else in another fleet."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def frames_of(message: Message) -> list[bytes]:
    """What goes over the wire."""
    return [address(message.whole_for), VERSION, _ENCODER.encode(message)]


def message_of(frames: list[bytes]) -> Message:
    """What came. Raises ReplicaMessageError that says what is wrong with it."""
    if len(frames) != PARTS:
        raise ReplicaMessageError(f"a message of {len(frames)} parts where {PARTS} are expected: is it a pointsman?")
    if frames[1] != VERSION:
        raise ReplicaMessageError(
            f"it speaks {frames[1][:40]!r}, this one {VERSION!r}; run the same version of pointsman everywhere"
        )
    try:
        return _DECODER.decode(frames[2])
    except msgspec.MsgspecError as error:
        raise ReplicaMessageError(f"it can't be read: {error}") from None


def address(replica: ReplicaId) -> bytes:
    """What a message begins with that is for one replica; for "": for all."""
    return TO_ONE + replica.encode() if replica else ALL
