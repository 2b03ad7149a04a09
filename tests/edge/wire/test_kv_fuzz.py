"""Event batches that are damaged anywhere: unreadable ones are counted and doubted, and nothing crashes or grows."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.ledger.events import BlocksCleared, BlocksStored
from pointsman.edge.cluster.kv_applier import KvApplier
from pointsman.edge.cluster.kv_sequence import Apply, KvSequence
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.cluster.kv_translate import MOST_BLOCKS
from pointsman.edge.wire.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventForm,
    KvEventError,
    decode_batch,
    decode_frames,
    decode_replay_reply,
    encode_batch,
    open_batch,
)

HASHES = st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=1, max_size=32))


@st.composite
def stored(draw) -> BlockStored:
    blocks, size = draw(st.integers(0, 4)), draw(st.integers(1, 8))
    return BlockStored(
        block_hashes=tuple(draw(st.lists(HASHES, min_size=blocks, max_size=blocks))),
        parent_block_hash=draw(st.one_of(st.none(), HASHES)),
        token_ids=tuple(draw(st.lists(st.integers(0, 200_000), min_size=blocks * size, max_size=blocks * size))),
        block_size=size,
        medium=draw(st.sampled_from([None, "GPU", "CPU", "disk", ""])),
        lora_name=draw(st.sampled_from([None, "a"])),
        group_idx=draw(st.sampled_from([None, 0, 1])),
    )


BATCHES = st.builds(
    lambda ts, events, rank, form: encode_batch(EventBatch(ts, tuple(events), rank), form),
    st.floats(0, 2e9),
    st.lists(
        st.one_of(
            stored(), st.builds(BlockRemoved, st.lists(HASHES, max_size=4).map(tuple)), st.just(AllBlocksCleared())
        ),
        max_size=5,
    ),
    st.sampled_from([None, 0, 3]),
    st.sampled_from(list(EventForm)),
)
ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=True),
        st.text(max_size=4),
        st.binary(max_size=4),
        st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "type", "events", "ts", "block_hashes"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=20,
)


@st.composite
def damaged(draw) -> bytes:
    """A real batch with some bytes changed, cut, or doubled."""
    text = bytearray(draw(BATCHES))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(text) - 1)))
        how = draw(st.sampled_from(["set", "cut", "insert"]))
        if how == "set" and text:
            text[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del text[at : at + draw(st.integers(1, 6))]
        else:
            text[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(text)


PAYLOADS = st.one_of(damaged(), damaged(), ANYTHING.map(msgspec.msgpack.encode), st.binary(max_size=60), BATCHES)


class Told:
    """An applier of one worker, and what it tells."""

    def __init__(self, *, rank: int | None = None) -> None:
        self.events: list[object] = []
        source = KvSource("a/0", "tcp://127.0.0.1:1", rank=rank)
        self.applier = KvApplier(source, KvSequence(replay=False), self.events.append, print, lambda: 1.0, lambda: 1.0)

    def apply(self, payload: bytes, seq: int) -> None:
        self.applier.add([Apply(seq, payload)])
        assert self.applier.work()


@settings(max_examples=400, deadline=None)
@given(st.lists(PAYLOADS, min_size=1, max_size=5), st.sampled_from([None, 0]))
def test_damaged_batches_are_counted_and_nothing_known_outlives_them(payloads, rank) -> None:
    told = Told(rank=rank)
    for seq, payload in enumerate(payloads):
        before, unusable = len(told.events), told.applier.unusable
        told.apply(payload, seq)
        try:
            decode_batch(payload)
        except KvEventError:
            assert told.applier.unusable == unusable + 1
            news = told.events[before:]
            assert any(isinstance(event, BlocksCleared) for event in news), "it may have told of removals"
    assert told.applier.batches == len(payloads)
    assert not told.applier.busy
    for event in told.events:
        assert not isinstance(event, BlocksStored) or len(event.hashes) <= MOST_BLOCKS


@settings(max_examples=200, deadline=None)
@given(PAYLOADS)
def test_reading_whole_and_reading_one_by_one_agree(payload) -> None:
    try:
        whole = decode_batch(payload)
    except KvEventError:
        whole = None
    try:
        opened = open_batch(payload)
        events = tuple(opened.events)
    except KvEventError:
        assert whole is None
        return
    assert whole is not None
    assert repr((opened.ts, events, opened.dp_rank)) == repr((whole.ts, whole.events, whole.dp_rank))
    assert opened.count == len(events)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=5))
def test_any_frames_are_read_or_refused(frames) -> None:
    for read in (decode_frames, decode_replay_reply):
        try:
            read(frames)
        except KvEventError:
            continue


def test_a_batch_that_claims_millions_of_things_costs_nothing() -> None:
    # msgpack tells lengths before contents: 4 GiB of bytes, of items, of pairs, of nothing that is there
    for lie in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
        for prefix in (b"", b"\x92\xcb" + b"\0" * 8, b"\x92\x01\x91\x95\xabBlockStored"):
            told = Told()
            told.apply(prefix + lie, 0)
            assert told.applier.unusable == 1


def test_deep_nesting_is_refused() -> None:
    told = Told()
    told.apply(b"\x91" * 100_000 + b"\xc0", 0)
    assert told.applier.unusable == 1
    told.apply(b"\x92\x01\x91" + b"\x91" * 100_000 + b"\xc0", 1)
    assert told.applier.unusable == 2
