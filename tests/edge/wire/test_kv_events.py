from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.wire.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventForm,
    KvEventError,
    UnknownEvent,
    decode_batch,
    decode_frames,
    decode_replay_reply,
    encode_batch,
    encode_frames,
    encode_replay_request,
    open_batch,
)

pack = msgspec.msgpack.encode

hashes = st.lists(
    st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(min_size=1, max_size=32)), min_size=1, max_size=4
).map(tuple)
names = st.none() | st.text(max_size=8)
stored = st.builds(
    BlockStored,
    block_hashes=hashes,
    parent_block_hash=st.none() | st.integers(0, 2**64 - 1) | st.binary(min_size=1, max_size=32),
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=20).map(tuple)
    | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4).map(tuple),
    block_size=st.integers(1, 256),
    lora_id=st.none() | st.integers(0, 9),
    medium=names,
    lora_name=names,
    extra_keys=st.none() | st.lists(st.none() | st.tuples(st.text(max_size=3)), max_size=3).map(tuple),
    group_idx=st.none() | st.integers(0, 3),
    kv_cache_spec_kind=names,
    kv_cache_spec_sliding_window=st.none() | st.integers(1, 9),
    locality=names,
    ownership=names,
    session_id=names,
)
removed = st.builds(BlockRemoved, hashes, names, st.none() | st.integers(0, 3), names, names)
batches = st.builds(
    EventBatch,
    ts=st.floats(0, 2e9),
    events=st.lists(stored | removed | st.just(AllBlocksCleared()), max_size=4).map(tuple),
    dp_rank=st.none() | st.integers(0, 15),
)


@given(batches, st.sampled_from(EventForm))
def test_what_is_encoded_decodes_to_the_same_in_every_form(batch: EventBatch, form: EventForm) -> None:
    assert decode_batch(encode_batch(batch, form)) == batch


def test_map_form_is_what_a_recent_vllm_sends() -> None:
    event = BlockStored((16637624887549663256,), None, (1, 2), 2, medium="GPU", group_idx=0)
    raw = msgspec.msgpack.decode(encode_batch(EventBatch(5.0, (event,), 0), EventForm.MAP))
    assert raw == [
        5.0,
        [
            {
                "type": "BlockStored",
                "block_hashes": [16637624887549663256],
                "parent_block_hash": None,
                "token_ids": [1, 2],
                "block_size": 2,
                "medium": "GPU",
                "group_idx": 0,
            }
        ],
        0,
    ]


def test_array_form_leaves_out_trailing_defaults_only() -> None:
    events = (
        BlockStored((1,), None, (7, 8), 2),
        BlockStored((2,), 1, (7, 8), 2, lora_name="ad"),
        BlockRemoved((1,)),
        BlockRemoved((2,), medium="CPU"),
        AllBlocksCleared(),
    )
    raw = msgspec.msgpack.decode(encode_batch(EventBatch(5.0, events), EventForm.ARRAY))
    assert raw == [
        5.0,
        [
            ["BlockStored", [1], None, [7, 8], 2],
            ["BlockStored", [2], 1, [7, 8], 2, None, None, "ad"],
            ["BlockRemoved", [1]],
            ["BlockRemoved", [2], "CPU"],
            ["AllBlocksCleared"],
        ],
    ]


@pytest.mark.parametrize("rank_key", ["data_parallel_rank", "attn_dp_rank", "dp_rank"])
def test_a_batch_map_may_call_its_rank_by_several_names(rank_key: str) -> None:
    assert decode_batch(pack({"ts": 1, "events": [], rank_key: 3})) == EventBatch(1.0, (), 3)


def test_forms_may_be_mixed_within_a_batch_and_unknown_things_are_ignored() -> None:
    raw = [
        1.5,
        [
            {"type": "BlockRemoved", "block_hashes": [b"\x01\x02"], "novelty": {"a": 1}},
            ["BlockRemoved", [-5], "CPU", 1, "REMOTE", "tier", "tail", 99],
            ["BlockStored", [3], None, [[1, 2], [2, 3]], 2],
            {"type": "BlockPinned", "block_hashes": [3]},
        ],
        None,
        "tail",
    ]
    batch = decode_batch(pack(raw))
    assert batch.dp_rank is None
    assert batch.events == (
        BlockRemoved((b"\x01\x02",)),
        BlockRemoved((-5,), "CPU", 1, "REMOTE", "tier"),
        BlockStored((3,), None, ((1, 2), (2, 3)), 2),
        UnknownEvent("BlockPinned"),
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("text", "a batch is an array"),
        ([1.0], "a batch is an array"),
        ([None, []], "a number as ts"),
        ([1.0, {}], "a list as events"),
        ([1.0, [], "zero"], "the rank of a batch is an integer, not str"),
        ([1.0, [5]], "an event is an array"),
        ([1.0, [[]]], "an event is an array"),
        ([1.0, [[5]]], "the tag of an event is a string, not int"),
        ([1.0, [["BlockRemoved"]]], "BlockRemoved.block_hashes is a list"),
        ([1.0, [["BlockRemoved", ["x"]]]], "BlockRemoved.block_hashes is a list of integers or bytes"),
        ([1.0, [["BlockStored", [1], "p", [1], 1]]], "parent_block_hash is an integer, bytes or nil, not str"),
        ([1.0, [["BlockStored", [1], None, None, 1]]], "token_ids is a list, not nil"),
        ([1.0, [["BlockStored", [1], None, [[1, 2, 3]], 1]]], "integers or pairs"),
        ([1.0, [["BlockStored", [1], None, [1]]]], "block_size is an integer from 0 on, not None"),
        ([1.0, [["BlockStored", [1], None, [1], -1]]], "block_size is an integer from 0 on, not -1"),
        ([1.0, [{"type": "BlockStored", "block_hashes": [1], "parent_block_hash": 1, "token_ids": []}]], "block_size"),
        ([1.0, [{"type": "BlockRemoved", "block_hashes": [1], "medium": 4}]], "medium of a KV event is a string"),
        ([1.0, [{"type": "BlockRemoved", "block_hashes": [1], "group_idx": "a"}]], "group_idx of a KV event"),
    ],
)
def test_what_breaks_the_contract_is_named(raw: object, message: str) -> None:
    with pytest.raises(KvEventError, match=message):
        decode_batch(pack(raw))


def test_events_are_read_as_they_are_asked_for() -> None:
    batch = open_batch(pack([1.0, [["BlockRemoved", [1]], {"type": "AllBlocksCleared"}, ["BlockRemoved", ["x"]]], 3]))
    assert (batch.ts, batch.count, batch.dp_rank) == (1.0, 3, 3)
    assert [next(batch.events), next(batch.events)] == [BlockRemoved((1,)), AllBlocksCleared()]
    with pytest.raises(KvEventError, match=r"BlockRemoved\.block_hashes is a list"):
        next(batch.events)


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_but_a_kv_event_error(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except KvEventError:
        return


def test_frames() -> None:
    frames = encode_frames("kv@a@m", 258, b"payload")
    assert frames == [b"kv@a@m", b"\0\0\0\0\0\0\1\2", b"payload"]
    assert decode_frames(frames) == ("kv@a@m", 258, b"payload")
    with pytest.raises(KvEventError, match="three frames"):
        decode_frames(frames[1:])
    with pytest.raises(KvEventError, match="8-byte sequence"):
        decode_frames([b"", b"\0", b""])


def test_replay_messages() -> None:
    assert encode_replay_request(7) == [b"", b"\0\0\0\0\0\0\0\7"]
    assert decode_replay_reply([b"", b"\0" * 7 + b"\5", b"p"]) == (5, b"p")
    assert decode_replay_reply([b"", b"", b"\0" * 7 + b"\5", b"p"]) == (5, b"p")
    assert decode_replay_reply([b"", b"\xff" * 8, b""]) is None
    with pytest.raises(KvEventError, match="8-byte sequence number"):
        decode_replay_reply([b"p"])
