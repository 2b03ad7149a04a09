from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ledger.events import BlocksCleared, BlocksRemoved, BlocksStored
from pointsman.core.model.token_keys import KeySpec, chain, pack_tokens, salt_extra, token_seed
from pointsman.edge.cluster.kv_translate import MOST_BLOCKS, Fault, KvTranslator, engine_extra
from pointsman.edge.wire.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
    UnknownEvent,
    decode_batch,
)


def translate(*events: KvEvent, by: KvTranslator | None = None) -> list[object]:
    return list((by or KvTranslator("a/0")).translate(EventBatch(1.0, events), 5.0))


def stored(**fields: object) -> BlockStored:
    values = {"block_hashes": (1, 2), "parent_block_hash": None, "token_ids": (1, 2, 3, 4), "block_size": 2, **fields}
    return BlockStored(**values)


def one(event: KvEvent) -> BlocksStored:
    (translated,) = translate(event)
    assert isinstance(translated, BlocksStored)
    return translated


def test_a_plain_store():
    assert one(stored()) == BlocksStored("a/0", 5.0, (1, 2), None, pack_tokens([1, 2, 3, 4]), KeySpec(2))


def test_hashes_stay_what_they_are():
    event = one(stored(block_hashes=(-5, b"\x01" * 32), parent_block_hash=2**64 - 1))
    assert (event.hashes, event.parent) == ((-5, b"\x01" * 32), 2**64 - 1)


@pytest.mark.parametrize(
    ("medium", "is_called"),
    [
        (None, "gpu"),
        ("GPU", "gpu"),
        ("CPU", "cpu"),
        ("CPU_PINNED", "cpu_pinned"),
        ("STORAGE", "storage"),
        ("Warp", "warp"),
        ("", "unnamed"),
    ],
)
def test_media_keep_their_names(medium, is_called):
    assert one(stored(medium=medium)).medium == is_called
    (removed,) = translate(BlockRemoved((1,), medium))
    assert removed == BlocksRemoved("a/0", 5.0, (1,), is_called)


def test_only_groups_that_hold_the_whole_prefix_are_taken_and_their_removals():
    translator = KvTranslator("a/0")
    kinds = ["full_attention", "mla_attention", "sink_full_attention", None]
    for group, kind in enumerate(kinds):
        assert translate(stored(group_idx=group, kv_cache_spec_kind=kind), by=translator)
    left_out = ["sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "unknown", "novelty"]
    for group, kind in enumerate(left_out, start=10):
        assert translate(stored(group_idx=group, kv_cache_spec_kind=kind), by=translator) == []
    removals = [BlockRemoved((group,), "GPU", group) for group in range(16)]
    (removed,) = translate(*removals, by=translator)
    assert removed.hashes == tuple(range(10))
    translator.reset()
    (removed,) = translate(*removals, by=translator)
    assert removed.hashes == tuple(range(16))


def test_removals_in_a_row_are_one_and_the_order_stays():
    row = [BlockRemoved((1,)), BlockRemoved((2, 3)), BlockRemoved((4,), "CPU"), stored(), BlockRemoved((5,))]
    translated = translate(*row)
    assert [getattr(event, "hashes", None) for event in translated] == [(1, 2, 3), (4,), (1, 2), (5,)]
    assert [event.medium for event in translated] == ["gpu", "cpu", "gpu", "gpu"]


@pytest.mark.parametrize("bigram", [False, True])
@pytest.mark.parametrize("salt", [None, "s"])
def test_very_many_blocks_are_told_in_pieces_that_chain_to_the_same_keys(bigram, salt):
    blocks, size = 2 * MOST_BLOCKS + 3, 2
    tokens = list(range(blocks * size + bigram))
    ids = tuple(pairwise(tokens)) if bigram else tuple(tokens)
    extra_keys = (((salt,) if salt else None), *(((b"image",),) * (blocks - 1)))
    pieces = translate(stored(block_hashes=tuple(range(blocks)), token_ids=ids, extra_keys=extra_keys))
    assert [len(piece.hashes) for piece in pieces] == [MOST_BLOCKS, MOST_BLOCKS, 3]
    assert [piece.parent for piece in pieces] == [None, MOST_BLOCKS - 1, 2 * MOST_BLOCKS - 1]
    keys: list[int] = []
    for piece in pieces:
        seed = keys[piece.parent] if keys else token_seed(piece.spec)
        keys += chain(piece.tokens, piece.spec, seed, piece.extras)
    extras = {number: engine_extra([b"image"]) for number in range(1, blocks)}
    extras |= {0: salt_extra(salt)} if salt else {}
    spec = KeySpec(size, bigram)
    assert keys == list(chain(pack_tokens(tokens), spec, token_seed(spec), extras))


def test_of_very_many_blocks_only_those_before_the_first_that_cannot_be_used_are_told():
    count = 3 * MOST_BLOCKS
    odd = [*range(count)]
    odd[2 * MOST_BLOCKS] = -1
    first, second, fault = translate(stored(block_hashes=tuple(range(count)), token_ids=tuple(odd), block_size=1))
    assert (first.hashes + second.hashes, type(fault)) == (tuple(range(2 * MOST_BLOCKS)), Fault)
    pairs = [(n, n + 1) for n in range(count)]
    pairs[MOST_BLOCKS:] = [(n, n + 1) for n in range(9, 9 + count - MOST_BLOCKS)]
    first, fault = translate(stored(block_hashes=tuple(range(count)), token_ids=tuple(pairs), block_size=1))
    assert (len(first.hashes), "do not overlap" in fault.reason) == (MOST_BLOCKS, True)


def test_very_many_removals_are_told_in_pieces():
    pieces = translate(BlockRemoved(tuple(range(MOST_BLOCKS + 1))), BlockRemoved((-1,)), stored())
    assert [len(piece.hashes) for piece in pieces] == [MOST_BLOCKS, 2, 2]
    assert pieces[0].hashes + pieces[1].hashes == (*range(MOST_BLOCKS + 1), -1)


def test_events_that_tell_nothing_are_steps_too():
    events = (stored(kv_cache_spec_kind="mamba"), stored(locality="REMOTE"), BlockRemoved((1,), None, None, "REMOTE"))
    assert list(KvTranslator("a/0").steps(EventBatch(1.0, events), 5.0)) == [None, None, None]


@pytest.mark.parametrize("size", [0, 16])
def test_hashes_alone_outside_the_gpu_are_left_out(size):
    alone = stored(token_ids=(), block_size=size, medium="CPU")
    assert translate(alone) == []
    (fault,) = translate(stored(token_ids=(), block_size=size))
    assert fault == Fault(f"blocks that it stored cannot be used: 0 tokens for 2 blocks of {size}")


def test_a_filtered_group_is_not_judged_by_its_tokens():
    assert translate(stored(token_ids=(1,), kv_cache_spec_kind="mamba")) == []


def test_blocks_that_are_elsewhere_are_not_this_workers():
    assert translate(stored(locality="REMOTE", medium="CPU"), BlockRemoved((1,), "CPU", None, "REMOTE")) == []
    assert len(translate(stored(locality="LOCAL"), BlockRemoved((1,), None, None, "LOCAL"))) == 2


def test_token_pairs_are_bigram_blocks():
    event = one(stored(token_ids=((1, 2), (2, 3), (3, 4), (4, 5))))
    assert (event.tokens, event.spec) == (pack_tokens([1, 2, 3, 4, 5]), KeySpec(2, bigram=True))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token_ids": (1, 2, 3)}, "3 tokens for 2 blocks of 2"),
        ({"token_ids": (), "block_size": 0}, "0 tokens for 2 blocks of 0"),
        ({"token_ids": (1, 2, 3, -4)}, "not all numbers of 32 bits"),
        ({"token_ids": (1, 2, 3, 2**32)}, "not all numbers of 32 bits"),
        ({"token_ids": ((1, 2), (2, 3), 4, 5)}, "mixed"),
        ({"token_ids": (1, 2, (2, 3), 5)}, "not all numbers"),
        ({"token_ids": ((1, 2), (2, 3), (4, 5), (5, 6))}, "do not overlap"),
        ({"extra_keys": (None,)}, "1 extra keys for 2 blocks"),
    ],
)
def test_a_store_that_does_not_fit_is_refused_and_the_others_are_not(fields, reason):
    fault, cleared = translate(stored(**fields), AllBlocksCleared())
    assert isinstance(fault, Fault)
    assert reason in fault.reason
    assert cleared == BlocksCleared("a/0", 5.0)


def test_what_is_only_a_hash_in_an_offload_tier_is_left_out():
    assert translate(stored(block_hashes=(1,), token_ids=(), block_size=0, medium="CPU")) == []
    assert translate(stored(block_hashes=(), token_ids=(1, 2))) == []


def test_an_unknown_event_is_a_fault_that_names_it():
    (fault,) = translate(UnknownEvent("BlockPinned"))
    assert isinstance(fault, Fault)
    assert "'BlockPinned'" in fault.reason


@pytest.mark.parametrize(
    ("fields", "extras"),
    [
        ({}, {}),
        ({"extra_keys": (("ad",), ("ad",)), "lora_name": "ad"}, {}),
        ({"extra_keys": ((7,), (7,)), "lora_id": 7}, {}),
        ({"extra_keys": (("salt",), None)}, {0: salt_extra("salt")}),
        ({"extra_keys": (("ad", "salt"), ("ad",)), "lora_name": "ad"}, {0: salt_extra("salt")}),
        ({"extra_keys": (("ad", "ad"), ("ad",)), "lora_name": "ad"}, {0: salt_extra("ad")}),
        ({"extra_keys": (None, ("mm",))}, {1: engine_extra(["mm"])}),
        ({"extra_keys": ((["mm", 3],), None)}, {0: engine_extra([["mm", 3]])}),
        ({"extra_keys": ((["mm", 3], "salt"), None)}, {0: engine_extra([["mm", 3], "salt"])}),
        ({"extra_keys": ((b"digest",), (b"digest",))}, {0: engine_extra([b"digest"]), 1: engine_extra([b"digest"])}),
        ({"extra_keys": (("x",), None), "parent_block_hash": 9}, {0: engine_extra(["x"])}),
        ({"cache_salt": "salt"}, {0: salt_extra("salt")}),
        ({"cache_salt": "salt", "parent_block_hash": 9}, {}),
        ({"cache_salt": ""}, {}),
    ],
)
def test_what_else_keys_a_block(fields, extras):
    assert one(stored(**fields)).extras == extras


def test_an_adapter_known_by_its_number_only_has_a_name_that_no_request_has():
    assert one(stored(lora_name="ad", lora_id=3)).lora_name == "ad"
    assert one(stored(lora_id=3)).lora_name not in (None, "3", one(stored(lora_id=4)).lora_name)
    assert one(stored(lora_id=0)).lora_name is None


@given(st.text(), st.lists(st.text() | st.binary() | st.integers(0, 9)))
def test_a_salt_is_never_taken_for_something_else(salt, items):
    assert salt_extra(salt) != engine_extra(items)


def recorded(event: object) -> list[object]:
    """The events of a batch as it came over the wire, written down as plain data."""
    payload = msgspec.msgpack.encode([1795983762.2, [event], 0])
    return list(KvTranslator("a/0").translate(decode_batch(payload), 5.0))


def test_frames_of_dynamos_mock_engine_of_sglang_and_of_vllm():
    tokens = list(range(16))
    dynamo = {
        "type": "BlockStored",
        "block_hashes": [16637624887549663256],
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": 16,
        "group_idx": 0,
    }
    sglang = {
        "type": "BlockStored",
        "block_hashes": [-4611686018427387904],
        "parent_block_hash": -1,
        "token_ids": tokens,
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "cache_salt": "s",
        "session_id": "turn-2",
    }
    old_sglang = ["BlockStored", [-7], None, tokens, 16, None]
    vllm = {**dynamo, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [["s"]], "session_id": None}
    results = [recorded(event)[0] for event in (dynamo, sglang, old_sglang, vllm)]
    assert [event.hashes for event in results] == [(16637624887549663256,), (-(2**62),), (-7,), (16637624887549663256,)]
    assert {event.tokens for event in results} == {pack_tokens(tokens)}
    assert [event.extras for event in results] == [{}, {}, {}, {0: salt_extra("s")}]
