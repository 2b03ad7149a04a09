"""Random stories of requests without contents at all stages, with runs of steps: the books balance, nobody is stuck."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.core.engine_model.block_pool import Key
from pointsman.core.engine_model.config import EngineConfig, TierConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.events import BlockRemoved, BlockStored, KvEvent
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.model.stage import Stage
from pointsman.core.timing.step import StepCoefficients

BLOCK = 4
CONTEXT = 40


class StageStory(RuleBasedStateMachine):
    @initialize(spare=st.integers(0, 14), budget=st.integers(4, 40), max_num_seqs=st.integers(1, 4), tier=st.booleans())
    def start(self, spare: int, budget: int, max_num_seqs: int, tier: bool) -> None:
        config = EngineConfig(
            step=StepCoefficients(1, 0.5, 2, 0.25),
            num_blocks=CONTEXT // BLOCK + spare,
            block_size=BLOCK,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=budget,
            max_model_len=CONTEXT,
            tiers=(TierConfig("CPU", 5, 1.0),) if tier else (),
        )
        self.engine = EngineModel(config)
        self.now_ms = self.end_ms = 0.0
        self.added: list[Sequence] = []
        self.moving: list[Sequence] = []
        self.held: list[Sequence] = []
        self.known: dict[str, set[int]] = {"GPU": set(), "CPU": set()}

    @rule(
        family=st.integers(0, 1),
        prompt=st.integers(1, CONTEXT - 2),
        output=st.integers(1, 30),
        stage=st.sampled_from(Stage),
        hashed=st.booleans(),
        answer=st.booleans(),
    )
    def add(self, family: int, prompt: int, output: int, stage: Stage, hashed: bool, answer: bool) -> None:
        self.cut()
        blocks = [1000 * family + number for number in range(prompt // BLOCK)] if hashed else []
        after = [10**6 + 100 * len(self.added) + number for number in range(3)] if hashed and answer else []
        request = LengthRequest(str(len(self.added)), prompt, output, tuple(blocks), tuple(after), stage)
        self.added += self.engine.add(request)

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.cut()
        key = data.draw(st.sampled_from(self.added)).request.id
        self.engine.abort(key)
        self.held = [sequence for sequence in self.held if sequence.request.id != key]

    @precondition(lambda self: self.moving)
    @rule(share=st.floats(0, 1))
    def arrive(self, share: float) -> None:
        self.cut()
        sequence = self.moving.pop(0)
        there, most = sequence.computed, sequence.prompt_length - 1
        self.engine.fetched(sequence, there + int(share * (most - there)))

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        self.cut()
        assert self.engine.release_held(self.held.pop(0).request.id)

    @precondition(lambda self: not self.engine.in_step)
    @rule(most=st.sampled_from([1, 5, 1000]))
    def begin(self, most: int) -> None:
        step = self.engine.begin_step(self.now_ms, most)
        for sequence in self.engine.take_reserved():
            assert sequence.transfer_tokens is not None
            assert sequence.transfer_tokens + (sequence.cached_tokens or 0) == sequence.prompt_length
            self.moving.append(sequence)
        self.end_ms = self.now_ms if step is None else self.now_ms + step.duration_ms

    @precondition(lambda self: self.engine.in_step)
    @rule(share=st.floats(0, 1))
    def look(self, share: float) -> None:
        self.now_ms += share * (self.end_ms - self.now_ms)
        self.engine.look(self.now_ms)

    @precondition(lambda self: self.engine.in_step)
    @rule()
    def finish(self) -> None:
        self.now_ms = self.end_ms
        result = self.engine.finish_step(self.now_ms)
        for sequence in result.finished:
            assert sequence.length == sequence.target_length
            if sequence.stage is Stage.PREFILL:
                self.held.append(sequence)
        for event in result.events:
            self.apply(event)

    @precondition(lambda self: not self.engine.in_step)
    @rule()
    def run_on(self) -> None:
        for _ in range(12):
            self.begin(1000)
            if not self.engine.in_step:
                break
            self.finish()

    def cut(self) -> None:
        if self.engine.in_step:
            self.end_ms += self.engine.cut_step(self.now_ms) - self.engine._step.duration_ms  # type: ignore[union-attr]

    def apply(self, event: KvEvent) -> None:
        if isinstance(event, BlockStored):
            self.known[event.medium].update(event.block_hashes)
        else:
            assert isinstance(event, BlockRemoved)
            assert self.known[event.medium].issuperset(event.block_hashes)
            self.known[event.medium].difference_update(event.block_hashes)

    @invariant()
    def blocks_have_their_owners(self) -> None:
        if not hasattr(self, "engine"):
            return
        pool = self.engine._scheduler.pool
        owners: Counter[Key] = Counter()
        plain = 0
        for sequence in [*self.engine.requests(), *self.held]:
            assert len(sequence.keys) <= sequence.blocks
            owners.update(sequence.keys)
            plain += sequence.blocks - len(sequence.keys)
        assert pool.used == len(owners) + plain
        assert all(pool.references(key) == count for key, count in owners.items())
        assert sum(run.plain + run.live for run in pool._runs) == pool.free
        # What was taken up again from a list of free blocks does not stay in it for ever.
        assert all(len(run.keys) <= 2 * run.live for run in pool._runs)

    @invariant()
    def sums_are_those_of_the_sequences(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler = self.engine._scheduler
        decoding = [sequence for sequence in scheduler.running if sequence.decoders is not None]
        assert scheduler.decoders.count == len(decoding)
        assert scheduler.decoders.context_tokens == sum(sequence.length for sequence in decoding)
        assert len(scheduler.running) - len(decoding) <= self.engine.config.max_num_seqs
        places = len(scheduler.running) + len(scheduler.reserved)
        assert places <= self.engine.config.max_num_seqs

    def teardown(self) -> None:
        """Once everything that moves has come and nothing is held, all get their tokens."""
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if self.engine.in_step:
                self.finish()
            while self.moving:
                sequence = self.moving.pop()
                self.engine.fetched(sequence, sequence.computed)
            while self.held:
                self.engine.release_held(self.held.pop().request.id)
            self.begin(1000)
            if not self.engine.in_step and not self.moving:
                break
        engine = self.engine
        assert engine.idle
        assert (engine.running, engine.waiting, engine.kv_use) == (0, 0, 0)
        for event in engine.take_events():
            self.apply(event)
        assert self.known["GPU"] == set(engine.cached_hashes())
        assert self.known["CPU"] == set(engine.tier_hashes().get("CPU", []))
        states = Counter(sequence.state for sequence in self.added)
        assert set(states) <= {SequenceState.FINISHED, SequenceState.ABORTED}
        assert engine.counters.finished == states[SequenceState.FINISHED]
        assert engine.counters.aborted == states[SequenceState.ABORTED]


TestStageStory = StageStory.TestCase
TestStageStory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
