from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pointsman.core.ledger.events import KvFeedState
from pointsman.edge.cluster.kv_applier import KvApplier
from pointsman.edge.cluster.kv_sequence import RECENT_BATCHES, Apply, Ask, Clear, Doubt, KvSequence, Step, Syncing
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, encode_batch

COMPLETE, PARTIAL, SYNCING = KvFeedState.COMPLETE, KvFeedState.PARTIAL, KvFeedState.SYNCING


def payload(seq: int, process: str = "first") -> bytes:
    return f"{process} {seq}".encode()


def applied(steps: list[Step]) -> list[int]:
    return [step.seq for step in steps if isinstance(step, Apply)]


def kinds(steps: list[Step]) -> list[type[Step]]:
    return [type(step) for step in steps]


def asked(steps: list[Step]) -> Ask:
    (ask,) = [step for step in steps if isinstance(step, Ask)]
    return ask


def synced(upto: int = 0, **more: object) -> KvSequence:
    """A sequence that has applied the batches before `upto`."""
    sequence = KvSequence(**more)
    ask = asked(sequence.connected())
    for seq in range(upto):
        sequence.replayed(ask.turn, seq, payload(seq))
    sequence.replay_ended(ask.turn)
    assert (sequence.syncing, sequence.next_seq) == (False, upto)
    return sequence


def test_a_cold_start_asks_from_zero_and_holds_what_comes_meanwhile():
    sequence = KvSequence()
    assert sequence.live(3, payload(3)) == []
    steps = sequence.connected()
    assert kinds(steps) == [Syncing, Ask]
    ask = asked(steps)
    assert ask.start_seq == 0
    assert sequence.live(4, payload(4)) == []
    assert [applied(sequence.replayed(ask.turn, seq, payload(seq))) for seq in range(4)] == [[0], [1], [2], [3]]
    assert sequence.syncing
    assert applied(sequence.replay_ended(ask.turn)) == [4]
    assert not sequence.syncing


def test_batches_in_order_are_applied_and_duplicates_are_not():
    sequence = synced(2)
    assert [applied(sequence.live(seq, payload(seq))) for seq in (2, 3, 2, 0, 4)] == [[2], [3], [], [], [4]]
    assert sequence.counts.duplicates == 2


def test_a_gap_holds_live_batches_until_the_replay_filled_it():
    sequence = synced(5)
    steps = sequence.live(8, payload(8))
    assert kinds(steps) == [Syncing, Ask]
    ask = asked(steps)
    assert ask.start_seq == 4, "from the last applied one on, as proof that nobody else answers"
    assert sequence.live(9, payload(9)) == []
    answers = [sequence.replayed(ask.turn, seq, payload(seq)) for seq in (4, 5, 6, 7, 8)]
    assert list(map(applied, answers)) == [[], [5], [6], [7], [8]]
    assert applied(sequence.replay_ended(ask.turn)) == [9]
    assert (sequence.syncing, sequence.counts.gaps, sequence.counts.losses) == (False, 1, 0)


def test_a_late_batch_closes_a_gap_too():
    sequence = synced(5)
    ask = asked(sequence.live(6, payload(6)))
    assert applied(sequence.live(5, payload(5))) == [5, 6]
    sequence.replayed(ask.turn, 4, payload(4))
    sequence.replay_ended(ask.turn)
    assert not sequence.syncing


def test_a_lower_number_with_other_content_is_a_restart():
    sequence = synced(5)
    steps = sequence.live(0, payload(0, "second"))
    assert kinds(steps) == [Clear, Syncing, Ask, Apply]
    assert steps[0] == Clear(anew=True)
    assert asked(steps).start_seq == 0
    assert sequence.counts.restarts == 1


def test_an_old_number_that_nobody_remembers_is_a_restart():
    sequence = synced(RECENT_BATCHES + 10)
    assert Clear(anew=True) in sequence.live(3, payload(3))


def test_a_gap_behind_which_another_process_is():
    """It restarted unseen and has come further than the old one was."""
    sequence = synced(5)
    ask = asked(sequence.live(8, payload(8, "second")))
    steps = sequence.replayed(ask.turn, 4, payload(4, "second"))
    assert kinds(steps) == [Clear, Syncing, Ask]
    anew = asked(steps)
    assert anew.start_seq == 0
    assert sequence.replayed(ask.turn, 5, payload(5, "second")) == [], "the first replay is void"
    got = [applied(sequence.replayed(anew.turn, seq, payload(seq, "second"))) for seq in range(9)]
    assert got == [[seq] for seq in range(9)]


def test_a_silent_restart_is_found_by_asking():
    sequence = synced(5)
    ask = asked(sequence.verify())
    assert not sequence.syncing, "asking alone is no doubt"
    steps = sequence.replay_ended(ask.turn)
    assert kinds(steps) == [Clear, Syncing, Ask]


def test_asking_after_a_silence_brings_a_lost_last_batch():
    sequence = synced(5)
    ask = asked(sequence.verify())
    assert sequence.verify() == [], "one at a time"
    sequence.replayed(ask.turn, 4, payload(4))
    assert applied(sequence.replayed(ask.turn, 5, payload(5))) == [5]
    sequence.replay_ended(ask.turn)
    assert (sequence.syncing, sequence.next_seq) == (False, 6)


def test_who_does_not_answer_after_a_silence_is_doubted_until_it_answers():
    sequence = synced(5)
    ask = asked(sequence.verify())
    assert sequence.replay_failed(ask.turn, "nobody answered") == [Doubt("nobody answered", unanswered=True)]
    assert not sequence.syncing, "what is known is used, for what it is worth"
    ask = asked(sequence.verify())
    sequence.replayed(ask.turn, 4, payload(4))
    assert applied(sequence.replayed(ask.turn, 5, payload(5))) == [5]
    assert sequence.replay_ended(ask.turn) == [Doubt("", unanswered=True)]


def test_history_that_is_gone_is_a_loss():
    sequence = synced(5)
    ask = asked(sequence.live(50, payload(50)))
    steps = sequence.replayed(ask.turn, 40, payload(40))
    assert kinds(steps) == [Syncing, Clear, Doubt, Apply]
    for seq in range(41, 51):
        sequence.replayed(ask.turn, seq, payload(seq))
    sequence.replay_ended(ask.turn)
    assert (sequence.syncing, sequence.next_seq, sequence.counts.losses) == (False, 51, 1)


def test_a_replay_with_holes_is_asked_for_again_and_not_for_ever():
    sequence = synced(5)
    ask = asked(sequence.live(9, payload(9)))
    for seq in (4, 5, 7):
        sequence.replayed(ask.turn, seq, payload(seq))
    again = asked(sequence.replay_ended(ask.turn))
    assert again.start_seq == 5
    for _ in range(3):
        sequence.replayed(again.turn, 5, payload(5))
        steps = sequence.replay_ended(again.turn)
        if sequence.counts.losses:
            break
        again = asked(steps)
    assert kinds(steps) == [Syncing, Clear, Doubt, Apply, Clear, Apply]
    assert (applied(steps), sequence.syncing) == ([7, 9], False)


def test_a_replay_that_fails():
    sequence = KvSequence()
    ask = asked(sequence.connected())
    assert sequence.replay_failed(ask.turn, "nobody answered") == [Doubt("nobody answered", unanswered=True)]
    assert not sequence.syncing
    ask = asked(sequence.verify())
    assert sequence.replay_ended(ask.turn) == [Doubt("", unanswered=True)]
    ask = asked(sequence.live(2, payload(2)))
    steps = sequence.replay_failed(ask.turn, "nobody answered")
    assert kinds(steps) == [Syncing, Clear, Doubt, Apply]
    assert not sequence.syncing


def test_what_a_broken_connection_may_have_hidden_is_not_applied_before_there_is_proof():
    sequence = synced(5)
    sequence.disconnected()
    assert sequence.live(5, payload(5)) == [], "it may be of the process before"
    ask = asked(sequence.connected())
    assert sequence.live(6, payload(6)) == []
    for seq in (4, 5):
        sequence.replayed(ask.turn, seq, payload(seq))
    assert applied(sequence.replay_ended(ask.turn)) == [6]
    assert not sequence.syncing


def test_a_replay_from_before_a_broken_connection_proves_nothing():
    sequence = synced(5)
    old = asked(sequence.verify())
    sequence.disconnected()
    sequence.connected()
    assert sequence.replay_ended(old.turn) == []
    assert sequence.syncing


@pytest.mark.parametrize(("first", "doubted"), [(0, False), (1, False), (2, True), (77, True)])
def test_without_replay_only_the_first_batches_are_a_beginning(first, doubted):
    sequence = KvSequence(replay=False)
    assert kinds(sequence.connected()) == [Syncing]
    assert sequence.syncing, "nothing was heard yet"
    steps = sequence.live(first, payload(first))
    assert any(isinstance(step, Doubt) for step in steps) is doubted
    assert (applied(steps), sequence.syncing) == ([first], False)


def test_without_replay_a_gap_is_a_loss_unless_the_batch_is_only_late():
    sequence = KvSequence(replay=False)
    sequence.connected()
    sequence.live(0, payload(0))
    ask = asked(sequence.live(2, payload(2)))
    assert applied(sequence.live(1, payload(1))) == [1, 2]
    assert sequence.replay_failed(ask.turn, "no replay") == []
    assert (sequence.syncing, sequence.counts.losses) == (False, 0)
    ask = asked(sequence.live(4, payload(4)))
    steps = sequence.replay_failed(ask.turn, "no replay")
    assert kinds(steps) == [Syncing, Clear, Doubt, Apply]
    assert not sequence.syncing


def test_without_replay_a_broken_connection_is_a_loss_that_a_new_process_ends():
    sequence = KvSequence(replay=False)
    sequence.connected()
    sequence.live(0, payload(0))
    sequence.disconnected()
    assert kinds(sequence.connected()) == [Syncing, Clear, Doubt]
    assert not sequence.syncing
    assert kinds(sequence.live(0, payload(0, "second"))) == [Clear, Apply]


TIGHT = pytest.mark.parametrize("limit", [{"held_batches": 3}, {"held_bytes": 3 * len(payload(10))}])


@TIGHT
def test_what_is_too_much_to_hold_is_asked_for_again(limit):
    sequence = synced(5, **limit)
    ask = asked(sequence.live(10, payload(10)))
    assert [sequence.live(seq, payload(seq)) for seq in (11, 12, 13, 14)] == [[]] * 4
    for seq in range(4, 11):
        sequence.replayed(ask.turn, seq, payload(seq))
    steps = sequence.replay_ended(ask.turn)
    assert (applied(steps), sequence.syncing) == ([11, 12], True), "that there was more is not forgotten"
    ask = asked(steps)
    assert ask.start_seq == 12
    assert [applied(sequence.replayed(ask.turn, seq, payload(seq))) for seq in (12, 13, 14)] == [[], [13], [14]]
    sequence.replay_ended(ask.turn)
    assert (sequence.syncing, sequence.next_seq, sequence.counts.losses) == (False, 15, 0)


@TIGHT
def test_what_was_too_much_to_hold_is_lost_where_the_replay_fails(limit):
    sequence = synced(5, **limit)
    ask = asked(sequence.live(10, payload(10)))
    for seq in (11, 12, 13):
        sequence.live(seq, payload(seq))
    steps = sequence.replay_failed(ask.turn, "time-out")
    assert (applied(steps), sequence.syncing, sequence.counts.losses) == ([10, 11, 12], False, 1)
    assert kinds(sequence.live(14, payload(14))) == [Syncing, Ask]


@TIGHT
def test_too_much_to_hold_without_replay_goes_on_without(limit):
    sequence = KvSequence(replay=False, **limit)
    sequence.connected()
    sequence.live(0, payload(0))
    sequence.live(10, payload(10))
    assert [sequence.live(seq, payload(seq)) for seq in (11, 12)] == [[], []]
    steps = sequence.live(13, payload(13))
    assert kinds(steps) == [Syncing, Clear, Doubt, Apply]
    assert (sequence.syncing, sequence.next_seq) == (False, 14)


def test_a_replay_that_was_too_much_is_asked_on_from_where_it_broke_off():
    sequence = KvSequence()
    ask = asked(sequence.connected())
    for seq in range(3):
        sequence.replayed(ask.turn, seq, payload(seq))
    ask = asked(sequence.replay_ended(ask.turn, whole=False))
    assert (ask.start_seq, sequence.syncing) == (2, True)
    for seq in (2, 3):
        sequence.replayed(ask.turn, seq, payload(seq))
    assert sequence.replay_ended(ask.turn) == []
    assert (sequence.syncing, sequence.next_seq, sequence.counts.losses) == (False, 4, 0)


def test_a_doubt_asks_who_is_there_and_the_next_one_for_everything_once():
    sequence = synced(3)
    ask = asked(sequence.doubt())
    assert (ask.start_seq, sequence.syncing) == (2, False)
    assert sequence.doubt() == [], "one at a time"
    sequence.replayed(ask.turn, 2, payload(2))
    assert sequence.replay_ended(ask.turn) == []
    ask = asked(sequence.doubt())
    assert ask.start_seq == 0
    steps = [step for seq in range(3) for step in sequence.replayed(ask.turn, seq, payload(seq))]
    assert kinds(steps) == [Clear, Syncing, Apply, Apply, Apply]
    sequence.replay_ended(ask.turn)
    assert asked(sequence.doubt()).start_seq == 2


def test_a_doubt_of_what_an_engine_keeps_no_more_changes_nothing():
    sequence = synced(9)
    ask = asked(sequence.doubt())
    sequence.replayed(ask.turn, 8, payload(8))
    sequence.replay_ended(ask.turn)
    ask = asked(sequence.doubt())
    assert sequence.replayed(ask.turn, 4, payload(4)) == []
    assert (sequence.syncing, applied(sequence.live(9, payload(9)))) == (False, [9])


# ---- any stream of events, any faults


class World:
    """An engine, its network and its replay service, and a view of it."""

    def __init__(self, holder, *, replay: bool, kept: int, seed: int, sliced: bool) -> None:
        self.sliced = sliced
        """Much is left queued, while more comes."""
        self.rng = random.Random(seed)
        self.holder = holder
        self.replay = replay
        source = KvSource("a/0", "tcp://h:1", "tcp://h:2" if replay else None)
        self.sequence = KvSequence(replay=replay, held_batches=12)
        self.applier = KvApplier(source, self.sequence, holder.emit, self.asked, lambda: 0.0, lambda: 0.0)
        self.ask: Ask | None = None
        self.kept = kept
        self.truths: dict[tuple[int, int], set[int]] = {}
        """What the engine held after each batch of each process."""
        self.processes: dict[bytes, int] = {}
        self.process = 0
        self.blocks: set[int] = set()
        self.number = 0
        self.boot()
        self.network: deque[tuple[int, bytes]] = deque()
        self.link = False
        self.joined_at_one = False
        """Without replay that counts as a beginning, though the very first batch is not known."""
        self.note_processes()

    def note_processes(self) -> None:
        applied = self.applier._applied

        def noted(step: Apply) -> None:
            process = self.processes[step.payload]
            if process != self.holder.process:
                self.joined_at_one = not self.replay and step.seq == 1
            self.holder.process = process
            applied(step)

        self.applier._applied = noted

    def boot(self) -> None:
        self.process += 1
        self.seq = 0
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.kept)
        self.blocks = set()

    def asked(self, ask: Ask) -> None:
        self.ask = ask

    def does(self, steps: list[Step]) -> None:
        self.applier.add(steps)
        while not self.applier.work(0.0 if self.sliced else float("inf")):
            self.check()
            if self.rng.random() < 0.4:
                return
        self.check()

    def check(self) -> None:
        """What is told to be known is the truth as of the last applied batch."""
        unsettled = self.holder.state not in (COMPLETE, PARTIAL) or self.applier.last_seq is None
        if unsettled or self.applier._in_work is not None:
            return
        truth = self.truths[self.holder.process, self.applier.last_seq]
        if self.holder.state is COMPLETE and not self.joined_at_one and not self.applier.busy:
            assert self.holder.hashes == truth
        else:
            assert self.holder.hashes <= truth

    # ---- what may happen

    def publish(self, arrives: str = "once") -> None:
        self.number += 1
        choice = self.rng.random()
        events: list[object] = []
        if choice < 0.05:
            self.blocks.clear()
            events.append(AllBlocksCleared())
        elif choice < 0.4 and self.blocks:
            gone = self.rng.choice(sorted(self.blocks))
            self.blocks.discard(gone)
            events.append(BlockRemoved((gone,)))
        else:
            new = self.rng.randrange(12)
            self.blocks.add(new)
            events.append(BlockStored((new,), None, (new,), 1))
        encoded = encode_batch(EventBatch(float(self.number), tuple(events), None))
        self.truths[self.process, self.seq] = set(self.blocks)
        self.processes[encoded] = self.process
        self.buffer.append((self.seq, encoded))
        message = (self.seq, encoded)
        self.seq += 1
        if not self.link or arrives == "never":
            return
        self.network.append(message)
        if arrives == "twice":
            self.network.append(message)
        elif arrives == "early" and len(self.network) > 1:
            self.network[-1], self.network[-2] = self.network[-2], self.network[-1]

    def deliver(self, count: int = 3) -> None:
        for _ in range(min(count, len(self.network))):
            self.does(self.sequence.live(*self.network.popleft()))

    def serve(self, *, dropping: bool = False) -> None:
        ask, self.ask = self.ask, None
        if ask is None:
            return
        if not self.replay:
            self.does(self.sequence.replay_failed(ask.turn, "no replay"))
            return
        for seq, encoded in list(self.buffer):
            if seq >= ask.start_seq and not (dropping and seq > self.buffer[0][0] and self.rng.random() < 0.4):
                self.does(self.sequence.replayed(ask.turn, seq, encoded))
        self.does(self.sequence.replay_ended(ask.turn))

    def fail(self) -> None:
        ask, self.ask = self.ask, None
        if ask is not None:
            self.does(self.sequence.replay_failed(ask.turn, "time-out"))

    def cut(self) -> None:
        if self.link:
            self.link = False
            if self.rng.random() < 0.5:
                self.network.clear()
            self.does(self.sequence.disconnected())

    def join(self) -> None:
        if not self.link:
            self.deliver(len(self.network))
            self.link = True
            self.does(self.sequence.connected())

    def restart(self) -> None:
        self.cut()
        self.boot()

    def restart_unseen(self) -> None:
        """The connection stays; then the first batch of the new process is not lost."""
        self.deliver(len(self.network))
        if self.link:
            self.boot()
            self.publish()
            self.deliver(1)

    def settle(self) -> None:
        self.sliced = False
        self.join()
        self.publish()
        for _ in range(40):
            self.deliver(len(self.network))
            self.serve()
        self.does(self.sequence.verify())
        self.serve()


ACTIONS = {
    "publish": World.publish,
    "lose": lambda world: world.publish("never"),
    "twice": lambda world: world.publish("twice"),
    "early": lambda world: world.publish("early"),
    "deliver": World.deliver,
    "serve": World.serve,
    "serve badly": lambda world: world.serve(dropping=True),
    "fail": World.fail,
    "cut": World.cut,
    "join": World.join,
    "restart": World.restart,
    "restart unseen": World.restart_unseen,
    "verify": lambda world: world.does(world.sequence.verify()),
}
OFTEN = ["publish"] * 6 + ["deliver"] * 5 + ["serve"] * 3


@given(
    actions=st.lists(st.sampled_from(OFTEN + list(ACTIONS)), max_size=60),
    replay=st.booleans(),
    kept=st.sampled_from([3, 8, 1000]),
    seed=st.integers(0, 2**16),
    sliced=st.booleans(),
)
@example(  # a restart of which no batch shows: nothing of the process before may be told of any more
    actions=["publish", "deliver", "restart", "join", "serve", "serve"], replay=True, kept=3, seed=0, sliced=False
)
@settings(max_examples=250, deadline=None)
def test_whatever_happens_nothing_is_believed_that_is_not_so(make_holder, actions, replay, kept, seed, sliced):
    holder = make_holder()
    world = World(holder, replay=replay, kept=kept, seed=seed, sliced=sliced)
    world.join()
    for action in actions:
        ACTIONS[action](world)
    world.settle()

    assert not world.sequence.syncing
    assert (holder.process, world.applier.last_seq) == (world.process, world.seq - 1)
    assert holder.orphans == 0
    if replay and kept == 1000 and world.buffer[0][0] == 0:
        assert holder.state is COMPLETE
        assert holder.hashes == world.blocks
    assert world.holder.hashes <= world.blocks
