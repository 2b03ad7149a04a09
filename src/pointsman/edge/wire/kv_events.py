"""KV events on the wire: vLLM's and SGLang's msgpack batches inside three ZMQ frames.

A batch is an array `[ts, events, rank?]` or a map, an event an array `[tag, field, ...]` or a map with its tag under
`type`. Encoding writes the form asked for; decoding takes either, per message and per event. Fields equal to their
default are left out, in arrays only at the end. Unknown keys and further array items are ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from pointsman.core.model.errors import PointsmanError

BlockHash = int | bytes
"""An engine's own id of a block: opaque, comparable within one engine only."""
TokenKey = int | tuple[int, int]
"""A token, or a pair of neighbours where an engine keys its cache by bigrams."""

END_OF_REPLAY = (1 << 64) - 1
"""Sequence number of the message that ends a replay (-1 as an unsigned number)."""


class KvEventError(PointsmanError):
    """Frames or a payload can't be understood; nothing of that message was used."""


class EventForm(enum.StrEnum):
    """How batches and events are written."""

    MAP = "map"
    """Events as maps inside an array batch: vLLM 0.28 and later."""
    MAP_BATCH = "map_batch"
    """The batch is a map as well: some newer vLLM."""
    ARRAY = "array"
    """Events as arrays: older vLLM, SGLang."""


class _StoredFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a BlockStored, in the order in which arrays have them."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    """Block before the first of these; None = start of a sequence."""
    token_ids: tuple[TokenKey, ...]
    block_size: int
    """0 with no tokens: the engine only has the hashes at hand, as for tiers below the GPU."""
    lora_id: int | None = None
    medium: str | None = None
    """`GPU` unless an offload tier is meant; None = not said, which means GPU."""
    lora_name: str | None = None
    extra_keys: tuple[tuple[object, ...] | None, ...] | None = None
    """What else went into each block's hash: adapter, multimodal ids, cache salt, digests of prompt embeddings."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockStored(_StoredFields, frozen=True, gc=False, tag="BlockStored"):
    """Blocks became reusable."""

    cache_salt: str | None = None
    """Salt of the whole sequence: newer SGLang, which has no extra keys. Only in maps."""


class _RemovedFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a BlockRemoved, in the order in which arrays have them."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class BlockRemoved(_RemovedFields, frozen=True, gc=False, tag="BlockRemoved"):
    """Blocks are gone from one medium."""


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False, tag="AllBlocksCleared"):
    """All blocks of this rank are gone."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event with a tag that is not known here: something happened, nobody can say what."""

    tag: str


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one engine step, in order."""

    ts: float
    """Seconds since the epoch, by the engine's clock."""
    events: tuple[KvEvent, ...]
    dp_rank: int | None = None


class EventFrames(NamedTuple):
    """One message of an engine's PUB socket."""

    topic: str
    seq: int
    payload: bytes


class _StoredArray(_StoredFields, frozen=True, gc=False, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(_RemovedFields, frozen=True, gc=False, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="AllBlocksCleared"):
    pass


class _BatchArray(msgspec.Struct, gc=False, array_like=True):
    ts: float
    events: tuple[msgspec.Raw, ...]
    dp_rank: int | None = None


class _BatchMap(msgspec.Struct, gc=False):
    ts: float
    events: tuple[msgspec.Raw, ...]
    data_parallel_rank: int | None = None
    attn_dp_rank: int | None = None
    dp_rank: int | None = None


_STORED_FIELDS = _StoredFields.__struct_fields__
_REMOVED_FIELDS = _RemovedFields.__struct_fields__
_REQUIRED = {"BlockStored": 4, "BlockRemoved": 1, "AllBlocksCleared": 0}
_RANK_KEYS = ("data_parallel_rank", "attn_dp_rank", "dp_rank")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
_batch_array_decoder = msgspec.msgpack.Decoder(_BatchArray)
_batch_map_decoder = msgspec.msgpack.Decoder(_BatchMap)
_event_map_decoder = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared)
_event_array_decoder = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


@dataclass(frozen=True, slots=True)
class UnreadBatch:
    """A batch whose events are read one by one, as they are asked for: a batch may be of any length."""

    ts: float
    """Seconds since the epoch, by the engine's clock."""
    count: int
    """Number of events."""
    events: Iterator[KvEvent]
    """To be gone through once; raises `KvEventError` at the first event that can't be understood."""
    dp_rank: int | None = None


def encode_batch(batch: EventBatch, form: EventForm = EventForm.MAP) -> bytes:
    """Payload of one message."""
    write = _event_array if form is EventForm.ARRAY else _event_map
    events = [write(event) for event in batch.events]
    if form is EventForm.MAP_BATCH:
        body: dict[str, object] = {"ts": batch.ts, "events": events}
        if batch.dp_rank is not None:
            body["data_parallel_rank"] = batch.dp_rank
        return _encoder.encode(body)
    return _encoder.encode([batch.ts, events] if batch.dp_rank is None else [batch.ts, events, batch.dp_rank])


def decode_batch(payload: bytes) -> EventBatch:
    """Batch of one message, in any form; raises `KvEventError`."""
    batch = open_batch(payload)
    return EventBatch(batch.ts, tuple(batch.events), batch.dp_rank)


def open_batch(payload: bytes) -> UnreadBatch:
    """Batch of one message, in any form, its events still to be read; raises `KvEventError`.

    The common forms have typed decoders; what does not fit them (unknown tags, mistakes) goes the long way, which is
    right for every form and names what is wrong.
    """
    try:
        array = _batch_array_decoder.decode(payload)
        return UnreadBatch(array.ts, len(array.events), map(_read_event, array.events), array.dp_rank)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        raw = _batch_map_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        batch = _anything(payload)
        return UnreadBatch(batch.ts, len(batch.events), iter(batch.events), batch.dp_rank)
    ranks = (getattr(raw, key) for key in _RANK_KEYS)
    rank = next((rank for rank in ranks if rank is not None), None)
    return UnreadBatch(raw.ts, len(raw.events), map(_read_event, raw.events), rank)


def _read_event(raw: msgspec.Raw) -> KvEvent:
    try:
        event = _of_array(_event_array_decoder.decode(raw)) if _is_array(raw) else _event_map_decoder.decode(raw)
        if not isinstance(event, BlockStored) or event.block_size >= 0:
            return event
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        anything: object = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KvEventError(f"an event is not msgpack: {error}") from error
    return _event(anything)


def _is_array(raw: msgspec.Raw) -> bool:
    """By msgpack's first byte: a short array, or one with a length of 16 or 32 bits."""
    first = memoryview(raw)[0]
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def _of_array(event: _StoredArray | _RemovedArray | _ClearedArray) -> KvEvent:
    if isinstance(event, _StoredArray):
        return BlockStored(*msgspec.structs.astuple(event))
    if isinstance(event, _RemovedArray):
        return BlockRemoved(*msgspec.structs.astuple(event))
    return AllBlocksCleared()


def _anything(payload: bytes) -> EventBatch:
    try:
        raw: object = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KvEventError(f"payload of {len(payload)} bytes is not msgpack: {error}") from error
    if isinstance(raw, Mapping):
        ts, events = raw.get("ts"), raw.get("events")
        rank = next((raw[key] for key in _RANK_KEYS if raw.get(key) is not None), None)
    elif isinstance(raw, list) and len(raw) >= 2:
        ts, events = raw[0], raw[1]
        rank = raw[2] if len(raw) > 2 else None
    else:
        raise KvEventError(f"a batch is an array [ts, events, rank] or a map, not {_kind(raw)}")
    if not isinstance(ts, int | float) or not isinstance(events, list):
        raise KvEventError(f"a batch needs a number as ts and a list as events, not {_kind(ts)} and {_kind(events)}")
    if rank is not None and not isinstance(rank, int):
        raise KvEventError(f"the rank of a batch is an integer, not {_kind(rank)}")
    return EventBatch(float(ts), tuple(_event(event) for event in events), rank)


def encode_frames(topic: str, seq: int, payload: bytes) -> list[bytes]:
    """The three frames of a published message."""
    return [topic.encode(), seq.to_bytes(8, "big"), payload]


def decode_frames(frames: Sequence[bytes]) -> EventFrames:
    """Topic, sequence number and payload of a published message; raises `KvEventError`."""
    if len(frames) != 3 or len(frames[1]) != 8:
        raise KvEventError(
            f"a message has three frames (topic, 8-byte sequence number, payload), not {[len(f) for f in frames]} bytes"
        )
    return EventFrames(frames[0].decode(errors="replace"), int.from_bytes(frames[1], "big"), frames[2])


def encode_replay_request(start_seq: int) -> list[bytes]:
    """Frames that a DEALER sends to ask for all buffered batches from `start_seq` on."""
    return [b"", start_seq.to_bytes(8, "big")]


def decode_replay_reply(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Sequence number and payload of one reply, None at the end of the replay; raises `KvEventError`."""
    # Only the last two frames count: some publishers put one more empty frame before them.
    if len(frames) < 2 or len(frames[-2]) != 8:
        raise KvEventError("a replay reply ends with an 8-byte sequence number and a payload")
    seq = int.from_bytes(frames[-2], "big")
    return None if seq == END_OF_REPLAY else (seq, frames[-1])


def _event_map(event: KvEvent) -> dict[str, object]:
    body: dict[str, object] = {"type": _tag(event)}
    values = _values(event)
    required = _REQUIRED.get(_tag(event), 0)
    for index, (name, value) in enumerate(values):
        if index < required or value is not None:
            body[name] = value
    if isinstance(event, BlockStored) and event.cache_salt is not None:
        body["cache_salt"] = event.cache_salt
    return body


def _event_array(event: KvEvent) -> list[object]:
    values = [value for _, value in _values(event)]
    required = _REQUIRED.get(_tag(event), 0)
    while len(values) > required and values[-1] is None:
        values.pop()
    return [_tag(event), *values]


def _tag(event: KvEvent) -> str:
    return event.tag if isinstance(event, UnknownEvent) else type(event).__name__


def _values(event: KvEvent) -> list[tuple[str, object]]:
    if isinstance(event, BlockStored):
        return [(name, getattr(event, name)) for name in _STORED_FIELDS]
    if isinstance(event, BlockRemoved):
        return [(name, getattr(event, name)) for name in _REMOVED_FIELDS]
    return []


def _event(raw: object) -> KvEvent:
    if isinstance(raw, Mapping):
        tag = raw.get("type")
        fields: Mapping[str, object] = raw
    elif isinstance(raw, list) and raw:
        tag = raw[0]
        names = _STORED_FIELDS if tag == "BlockStored" else _REMOVED_FIELDS
        fields = dict(zip(names, raw[1:], strict=False))
    else:
        raise KvEventError(f"an event is an array [tag, ...] or a map with a type, not {_kind(raw)}")
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return _removed(fields)
    if tag == "AllBlocksCleared":
        return AllBlocksCleared()
    if isinstance(tag, str):
        return UnknownEvent(tag)
    raise KvEventError(f"the tag of an event is a string, not {_kind(tag)}")


def _stored(fields: Mapping[str, object]) -> BlockStored:
    parent = fields.get("parent_block_hash")
    if parent is not None and not isinstance(parent, int | bytes):
        raise KvEventError(f"BlockStored.parent_block_hash is an integer, bytes or nil, not {_kind(parent)}")
    size = _integer(fields, "block_size")
    if size is None or size < 0:
        raise KvEventError(f"BlockStored.block_size is an integer from 0 on, not {fields.get('block_size')!r}")
    return BlockStored(
        block_hashes=_hashes(fields, "BlockStored"),
        parent_block_hash=parent,
        token_ids=_tokens(fields.get("token_ids")),
        block_size=size,
        lora_id=_integer(fields, "lora_id"),
        medium=_text(fields, "medium"),
        lora_name=_text(fields, "lora_name"),
        extra_keys=_extra_keys(fields.get("extra_keys")),
        group_idx=_integer(fields, "group_idx"),
        kv_cache_spec_kind=_text(fields, "kv_cache_spec_kind"),
        kv_cache_spec_sliding_window=_integer(fields, "kv_cache_spec_sliding_window"),
        locality=_text(fields, "locality"),
        ownership=_text(fields, "ownership"),
        session_id=_text(fields, "session_id"),
        cache_salt=_text(fields, "cache_salt"),
    )


def _removed(fields: Mapping[str, object]) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=_hashes(fields, "BlockRemoved"),
        medium=_text(fields, "medium"),
        group_idx=_integer(fields, "group_idx"),
        locality=_text(fields, "locality"),
        ownership=_text(fields, "ownership"),
    )


def _hashes(fields: Mapping[str, object], tag: str) -> tuple[BlockHash, ...]:
    value = fields.get("block_hashes")
    if not isinstance(value, list) or not all(isinstance(item, int | bytes) for item in value):
        raise KvEventError(f"{tag}.block_hashes is a list of integers or bytes, not {_kind(value)}")
    return tuple(value)


def _tokens(value: object) -> tuple[TokenKey, ...]:
    if not isinstance(value, list):
        raise KvEventError(f"BlockStored.token_ids is a list, not {_kind(value)}")
    if all(type(item) is int for item in value):
        return tuple(value)
    pairs: list[TokenKey] = []
    for item in value:
        if isinstance(item, int):
            pairs.append(item)
        elif isinstance(item, list) and len(item) == 2 and all(isinstance(part, int) for part in item):
            pairs.append((item[0], item[1]))
        else:
            raise KvEventError(f"BlockStored.token_ids holds integers or pairs of them, not {_kind(item)}")
    return tuple(pairs)


def _extra_keys(value: object) -> tuple[tuple[object, ...] | None, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise KvEventError(f"BlockStored.extra_keys is a list or nil, not {_kind(value)}")
    return tuple(None if item is None else tuple(item) if isinstance(item, list) else (item,) for item in value)


def _integer(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, int):
        raise KvEventError(f"{name} of a KV event is an integer or nil, not {_kind(value)}")
    return value


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise KvEventError(f"{name} of a KV event is a string or nil, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    return "nil" if value is None else type(value).__name__
