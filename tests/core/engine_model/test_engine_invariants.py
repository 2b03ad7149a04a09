"""Random stories: whatever is asked, aborted and computed in whatever order, the books balance."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.core.engine_model.block_hash import prompt_hashes, root_seed
from pointsman.core.engine_model.block_pool import Key
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.timing.step import StepCoefficients

BLOCK = 4
CONTEXT = 40


class EngineStory(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(10, 24), budget=st.integers(4, 40), max_num_seqs=st.integers(1, 4))
    def start(self, num_blocks: int, budget: int, max_num_seqs: int) -> None:
        config = EngineConfig(
            step=StepCoefficients(1, 0.5, 0, 0.25),
            num_blocks=num_blocks,
            block_size=BLOCK,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=budget,
            max_model_len=CONTEXT,
        )
        self.engine = EngineModel(config)
        self.now_ms = 0.0
        self.added: list[Sequence] = []
        self.emitted: dict[Sequence, int] = {}
        self.announced: set[int] = set()
        self.tokens_of_hash: dict[int, tuple[int | None, tuple[int, ...]]] = {}

    # Few different prompts, so that they share prefixes; long ones, so that blocks run out.
    @rule(
        family=st.integers(0, 1),
        length=st.integers(1, CONTEXT - 1),
        max_tokens=st.integers(1, 20),
        sequences=st.integers(1, 3),
        salt=st.sampled_from([None, "x"]),
    )
    def add(self, family: int, length: int, max_tokens: int, sequences: int, salt: str | None) -> None:
        prompt = [family * 100 + position for position in range(length)]
        request = EngineRequest(str(len(self.added)), prompt, max_tokens, sequences, cache_salt=salt)
        new = self.engine.add(request)
        self.added += new
        self.emitted.update(dict.fromkeys(new, 0))

    @precondition(lambda self: self.added)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        sequence = data.draw(st.sampled_from(self.added))
        if whole:
            self.engine.abort(sequence.request.id)
        else:
            self.engine.abort_sequence(sequence)

    @precondition(lambda self: not self.engine.in_step)
    @rule()
    def begin(self) -> None:
        step = self.engine.begin_step(self.now_ms)
        if step is None:
            assert self.engine.idle
            return
        self.now_ms += step.duration_ms
        batch = step.batch
        assert batch.decodes + batch.prefill_tokens <= self.engine.config.max_batched_tokens
        assert batch.decodes + len(batch.chunks) <= 2 * self.engine.config.max_num_seqs
        assert self.engine.running <= self.engine.config.max_num_seqs

    @precondition(lambda self: self.engine.in_step)
    @rule()
    def finish(self) -> None:
        result = self.engine.finish_step(self.now_ms)
        for sequence, token in result.tokens:
            self.emitted[sequence] += 1
            assert sequence.tokens[-1] == token
        self.apply(result.events)

    @precondition(lambda self: not self.engine.in_step)
    @rule()
    def run_some_steps(self) -> None:
        for _ in range(15):
            self.begin()
            if not self.engine.in_step:
                break
            self.finish()

    @rule()
    def reset_cache(self) -> None:
        before = self.engine.kv_use
        assert self.engine.reset_prefix_cache() == (before == 0)

    def apply(self, events: list[KvEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.store(event)
            elif isinstance(event, BlockRemoved):
                assert self.announced.issuperset(event.block_hashes)
                self.announced.difference_update(event.block_hashes)
            else:
                assert isinstance(event, AllBlocksCleared)
                self.announced.clear()

    def store(self, event: BlockStored) -> None:
        assert len(event.token_ids) == BLOCK * len(event.block_hashes)
        parent = event.parent_block_hash
        for number, key in enumerate(event.block_hashes):
            tokens = event.token_ids[number * BLOCK : (number + 1) * BLOCK]
            assert self.tokens_of_hash.setdefault(key, (parent, tokens)) == (parent, tokens)
            parent = key
        self.announced.update(event.block_hashes)

    @invariant()
    def references_match_the_owners(self) -> None:
        if not hasattr(self, "engine"):
            return
        pool = self.engine._scheduler.pool
        owners: Counter[Key] = Counter()
        plain = 0
        for sequence in self.engine.requests():
            assert len(set(sequence.keys)) == len(sequence.keys) <= sequence.blocks
            owners.update(sequence.keys)
            plain += sequence.blocks - len(sequence.keys)
        cached = set(pool._cached)
        assert cached.issuperset(owners)
        for key in cached:
            assert pool.references(key) == owners[key]
            assert pool.is_free(key) == (key not in owners)
        assert pool.used == len(owners) + plain
        assert pool.free == sum(run.plain + run.live for run in pool._runs)

    @invariant()
    def only_sequences_in_the_engine_hold_blocks(self) -> None:
        if not hasattr(self, "engine"):
            return
        inside = set(self.engine.requests())
        for sequence in self.added:
            if sequence not in inside:
                assert sequence.blocks == 0
                assert sequence.state in (SequenceState.FINISHED, SequenceState.ABORTED)
            assert sequence.generated == self.emitted[sequence]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.engine.in_step:
            self.finish()
        for _ in range(5000):
            self.begin()
            if not self.engine.in_step:
                break
            self.finish()
        engine = self.engine
        self.apply(engine.take_events())
        assert engine.idle
        assert engine.kv_use == 0
        assert self.announced == set(engine.cached_hashes())
        for sequence in self.added:
            asked = min(sequence.request.max_tokens, CONTEXT - sequence.prompt_length)
            if sequence.state is SequenceState.FINISHED:
                assert sequence.generated == asked
        assert engine.counters.finished + engine.counters.aborted == len(self.added)
        self.look_up_what_is_cached()

    def look_up_what_is_cached(self) -> None:
        """The cached prefix of a new request equals that of a naive model: blocks announced one after the other."""
        for family in (0, 1):
            prompt = [family * 100 + position for position in range(CONTEXT - 1)]
            (probe,) = self.engine.add(EngineRequest(f"probe-{family}", prompt, 1))
            hashes = prompt_hashes(probe.tokens, BLOCK, root_seed(None, None))
            expected = 0
            while expected < (len(prompt) - 1) // BLOCK and hashes[expected] in self.announced:
                expected += 1
            self.engine.begin_step(self.now_ms)
            assert probe.cached_tokens == expected * BLOCK
            self.engine.abort(probe.request.id)
            self.apply(self.engine.finish_step(self.now_ms).events)


TestEngineStory = EngineStory.TestCase
TestEngineStory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
