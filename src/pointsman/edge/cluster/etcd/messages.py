"""What etcd's JSON gateway says. Numbers come as texts, bytes in base64, and what is zero is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Header(msgspec.Struct):
    """Of every answer."""

    cluster_id: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    """One key as it is at some revision."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class RangeAnswer(msgspec.Struct):
    """Of `/v3/kv/range`."""

    header: Header = msgspec.field(default_factory=Header)
    kvs: tuple[KeyValue, ...] = ()


class WriteAnswer(msgspec.Struct):
    """Of a put, a deletion or a revocation."""

    header: Header = msgspec.field(default_factory=Header)
    deleted: int = 0


class LeaseAnswer(msgspec.Struct, rename={"id": "ID", "ttl_s": "TTL"}):
    """Of `/v3/lease/grant`, and in that of `/v3/lease/keepalive`."""

    id: int = 0
    ttl_s: int = 0
    """0: it is over."""
    error: str = ""


class KeepAliveAnswer(msgspec.Struct):
    """The first line of `/v3/lease/keepalive`."""

    result: LeaseAnswer = msgspec.field(default_factory=LeaseAnswer)


class TransactionPart(msgspec.Struct):
    """Answer of one operation; only what reads has something to say."""

    response_range: RangeAnswer | None = None


class TransactionAnswer(msgspec.Struct):
    """Of `/v3/kv/txn`."""

    header: Header = msgspec.field(default_factory=Header)
    succeeded: bool = False
    responses: tuple[TransactionPart, ...] = ()


class Event(msgspec.Struct):
    """One change of a key."""

    kv: KeyValue
    type: str = "PUT"
    """`PUT` or `DELETE`."""


class WatchLine(msgspec.Struct):
    """What a watch says at once."""

    header: Header = msgspec.field(default_factory=Header)
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: tuple[Event, ...] = ()


class StreamError(msgspec.Struct):
    """How a stream ends that fails. Later versions say only the message."""

    message: str = ""


class WatchAnswer(msgspec.Struct):
    """One line of a watch."""

    result: WatchLine | None = None
    error: StreamError | None = None


class TokenAnswer(msgspec.Struct):
    """Of `/v3/auth/authenticate`."""

    token: str


class Refusal(msgspec.Struct):
    """Body of an answer that is no 200."""

    message: str = ""
    error: str = ""
    code: int = 0
    """gRPC's."""


def decode(body: bytes, kind: type[T]) -> T:
    """One message. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=kind, strict=False)


def end_of_prefix(prefix: bytes) -> bytes:
    """The first key after all keys that begin with a prefix."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else b"\0"


def selection(key: bytes, *, prefix: bool) -> dict[str, object]:
    """A key, or all that begin so."""
    return {"key": key, "range_end": end_of_prefix(key)} if prefix else {"key": key}


# ---- conditions and operations of transactions


def created_at(key: bytes, revision: int) -> dict[str, object]:
    """Condition: the key was made at that revision; 0: there is no such key."""
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision}


def written_at(key: bytes, revision: int) -> dict[str, object]:
    """Condition: the key was written last at that revision."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def holds(key: bytes, value: bytes) -> dict[str, object]:
    """Condition: the key has that value."""
    return {"key": key, "target": "VALUE", "result": "EQUAL", "value": value}


def putting(key: bytes, value: bytes, lease: int = 0) -> dict[str, object]:
    """Operation: write a key."""
    return {"request_put": {"key": key, "value": value, "lease": lease}}


def deleting(key: bytes, *, prefix: bool = False) -> dict[str, object]:
    """Operation: delete a key, or all that begin so."""
    return {"request_delete_range": selection(key, prefix=prefix)}


def reading(key: bytes, *, prefix: bool = False) -> dict[str, object]:
    """Operation: read a key, or all that begin so."""
    return {"request_range": selection(key, prefix=prefix)}


Parts = Sequence[dict[str, object]]
