from __future__ import annotations

import msgspec
import pytest

from pointsman.core.ledger.events import KvFeedState
from pointsman.edge.cluster.kv_applier import KvApplier
from pointsman.edge.cluster.kv_sequence import Apply, Clear, Doubt, KvSequence, Syncing
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.cluster.kv_translate import MOST_BLOCKS
from pointsman.edge.wire.kv_events import BlockStored, EventBatch, encode_batch


def stored(first: int, blocks: int = 1) -> BlockStored:
    hashes = tuple(range(first, first + blocks))
    return BlockStored(hashes, None, hashes, 1)


def batch(seq: int, *events: object) -> Apply:
    return Apply(seq, encode_batch(EventBatch(1.0, events)))  # type: ignore[arg-type]


@pytest.fixture
def sequence() -> KvSequence:
    sequence = KvSequence()
    sequence.syncing = False
    return sequence


@pytest.fixture
def applier(holder, sequence) -> KvApplier:
    hint = "something is not told"
    source = KvSource("a/0", "tcp://h:1", "tcp://h:2", hint=hint)
    return KvApplier(source, sequence, holder.emit, lambda ask: None, lambda: 0.0, lambda: 3.0)


def test_a_batch_is_applied_event_by_event(applier, holder):
    applier.add([batch(7, *(stored(number) for number in range(50)))])
    turns = 0
    while not applier.work(0.0):
        assert len(holder.hashes) <= turns + 1
        assert (applier.last_seq, applier.batches, holder.state) == (None, 0, KvFeedState.SYNCING)
        turns += 1
    assert turns >= 50
    assert (applier.last_seq, applier.batches, applier.events, applier.lag_s) == (7, 1, 50, 2.0)
    assert (holder.state, holder.hashes) == (KvFeedState.COMPLETE, set(range(50)))
    assert holder.reason.endswith("(something is not told)")


def test_an_event_of_very_many_blocks_is_applied_in_pieces(applier, holder):
    applier.add([batch(0, stored(0, 10 * MOST_BLOCKS))])
    turns = 0
    while not applier.work(0.0):
        turns += 1
    assert (turns >= 10, holder.largest, len(holder.hashes)) == (True, MOST_BLOCKS, 10 * MOST_BLOCKS)
    assert holder.orphans == 0


def test_the_order_of_batches_stays(applier, holder):
    applier.add([batch(0, stored(1, 3)), batch(1, BlockStored((9,), 3, (5,), 1)), batch(2, stored(7))])
    while not applier.work(0.0):
        assert applier.last_seq in (None, 0, 1, 2)
    assert (holder.orphans, holder.hashes, applier.last_seq) == (0, {1, 2, 3, 9, 7}, 2)


def test_a_clear_drops_what_is_queued_and_what_is_half_applied(applier, holder):
    applier.add([batch(0, stored(1), stored(2), stored(3)), Doubt("a loss"), batch(1, stored(4))])
    for _ in range(3):
        assert not applier.work(0.0)
    assert holder.hashes == {1, 2}
    applier.add([Syncing("anew"), Clear(), batch(0, stored(5))])
    assert applier.work()
    assert (holder.hashes, holder.seen, applier.batches) == ({5}, {1, 2, 5}, 1)
    assert (holder.state, holder.reason.startswith("a loss")) == (KvFeedState.PARTIAL, True)


def test_an_event_that_cannot_be_read_spoils_its_batch_in_the_middle(applier, holder):
    good, odd = {"type": "BlockRemoved", "block_hashes": [5]}, {"type": "BlockRemoved", "block_hashes": ["x"]}
    applier.add([batch(0, stored(1)), Apply(1, msgspec.msgpack.encode([1.0, [good, odd]])), batch(2, stored(2))])
    assert applier.work()
    assert (holder.state, holder.hashes) == (KvFeedState.PARTIAL, {2})
    assert (applier.last_seq, applier.batches, applier.unusable) == (2, 3, 1)


def test_while_much_waits_elsewhere_the_view_is_not_to_be_used(applier, holder):
    applier.behind = "behind by 3000 event batches"
    applier.add([batch(0, stored(1))])
    assert applier.work()
    assert (holder.state, holder.reason) == (KvFeedState.SYNCING, "behind by 3000 event batches")
    applier.behind = ""
    assert applier.work()
    assert holder.state is KvFeedState.COMPLETE
