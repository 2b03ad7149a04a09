"""One modelled engine: requests in; tokens, KV events and counters out, step by step or many steps in one go.

It has no clock: whoever drives it says what time it is and waits (or does not wait) until a step's end.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from pointsman.core.engine_model.block_hash import prompt_hashes, root_seed
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.events import AllBlocksCleared, KvEvent
from pointsman.core.engine_model.length_sequence import LengthSequence
from pointsman.core.engine_model.request import EngineRequest, LengthRequest
from pointsman.core.engine_model.scheduler import Scheduler
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.engine_model.step import EngineCounters, Step, StepResult
from pointsman.core.engine_model.token_sequence import TokenSequence
from pointsman.core.engine_model.token_source import context_digest
from pointsman.core.model.errors import EngineError
from pointsman.core.model.stage import Stage


class RequestRefusedError(EngineError):
    """An engine can't compute a request, whatever its load."""


class EngineModel:
    """Continuous batching over a paged KV cache, in modelled time.

    `begin_step` then `finish_step` with the step's duration between them; requests may come and be aborted in between.
    With `most_steps` above 1 a step may be a run of steps that only decode; whoever adds or aborts meanwhile calls
    `cut_step` first, and has the same result as with single steps.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler | None = None,
        sequence_type: type[TokenSequence] = TokenSequence,
    ) -> None:
        """`scheduler`: one that does more than count blocks; `sequence_type`: where tokens come from."""
        self.config = config
        self._counters = EngineCounters()
        self._scheduler = Scheduler(config) if scheduler is None else scheduler
        self._sequence_type = sequence_type
        self._sequences: dict[str, list[Sequence]] = {}
        self._held: dict[str, Sequence] = {}
        self._step: Step | None = None
        self._first_tick = 0

    @property
    def counters(self) -> EngineCounters:
        """Totals since the start."""
        self._counters.generated_tokens = self._scheduler.generated
        return self._counters

    @property
    def running(self) -> int:
        """Sequences that are computed."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, preempted ones and those whose KV is on its way included."""
        return len(self._scheduler.waiting) + len(self._scheduler.reserved)

    @property
    def preemptions(self) -> int:
        """Preemptions since the start."""
        return self._scheduler.preemptions

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks that sequences hold, 0..1; in a run as of the last `look`."""
        return self._scheduler.pool.used / self.config.num_blocks

    @property
    def steps_done(self) -> int:
        """Steps since the start; in a run as of the last `look`."""
        return self._scheduler.decoders.ticks

    @property
    def in_step(self) -> bool:
        """Whether a step has begun and not finished."""
        return self._step is not None

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits to run. KV on its way, or held for others, is not work."""
        scheduler = self._scheduler
        return not (scheduler.running or scheduler.waiting or scheduler.fetched)

    @property
    def held(self) -> int:
        """Requests whose blocks are held for others."""
        return len(self._held)

    def cached_hashes(self) -> list[int]:
        """Hashes of all blocks on the GPU that a new request could reuse: the truth that KV events report."""
        return self._scheduler.pool.cached_hashes()

    def tier_hashes(self) -> dict[str, list[int]]:
        """Hashes of the blocks in each tier below the GPU, by its name."""
        tiers = self._scheduler.tiers
        return {} if tiers is None else tiers.hashes()

    def requests(self) -> list[Sequence]:
        """Sequences that are running, waiting, or have their KV on its way."""
        scheduler = self._scheduler
        return [*scheduler.running, *scheduler.waiting, *scheduler.reserved]

    def add(self, request: EngineRequest | LengthRequest) -> tuple[Sequence, ...]:
        """Queue a request; one sequence for each of its answers.

        One at the decode stage waits for KV blocks, is among `take_reserved` then, and is computed once `fetched` says
        how much of its KV has come. Raises `RequestRefusedError` for a prompt that is empty or leaves no room for an
        answer, an id in use, or hashes that do not fit the lengths.
        """
        if isinstance(request, LengthRequest):
            self._check_lengths(request)
            sequences: list[Sequence] = [
                LengthSequence(request, self.config.max_model_len, hashed=self.config.prefix_caching)
            ]
        else:
            sequences = self._token_sequences(request)
        self._sequences[request.id] = sequences
        self._scheduler.waiting.extend(sequences)
        return tuple(sequences)

    def abort(self, request_id: str) -> bool:
        """Take a request out, in whatever state it is; False when there is none of that id."""
        if self.release_held(request_id):
            return True
        sequences = self._sequences.get(request_id)
        if sequences is None:
            return False
        for sequence in list(sequences):
            self.abort_sequence(sequence)
        return True

    def abort_sequence(self, sequence: Sequence) -> bool:
        """Take one answer out and leave its siblings; False when it has ended already."""
        if sequence.state in (SequenceState.FINISHED, SequenceState.ABORTED):
            return False
        step = self._step
        if (
            step is not None
            and sequence.decoders is not None
            and sequence.decoders.opened < self._first_tick + step.steps
        ):
            raise RuntimeError("a run of steps has begun: cut it first")
        self._scheduler.drop(sequence, SequenceState.ABORTED)
        self._counters.aborted += 1
        self._forget(sequence)
        return True

    def take_reserved(self) -> list[Sequence]:
        """Sequences at the decode stage that got their KV blocks since the last call.

        `transfer_tokens` of their prompts have to be fetched now. `begin_step` hands out blocks, even where it returns
        None.
        """
        reserved, self._scheduler.new_reserved = self._scheduler.new_reserved, []
        return [sequence for sequence in reserved if sequence.state is SequenceState.RESERVED]

    def fetched(self, sequence: Sequence, tokens: int) -> bool:
        """The KV of the first `tokens` prompt tokens of a sequence at the decode stage is there; it computes the rest.

        `tokens` counts those that were found in the cache (`computed`) and leaves at least the prompt's last one. False
        when the sequence does not wait for KV (any more).
        """
        scheduler = self._scheduler
        if sequence.state is not SequenceState.RESERVED or sequence in scheduler.fetched:
            return False
        cached = sequence.still_computed
        if not cached <= tokens < sequence.prompt_length:
            raise ValueError(f"{tokens} tokens fetched, {cached} of {sequence.prompt_length} were there")
        sequence.transfer_tokens = tokens - cached
        if sequence.cached_tokens is not None:
            sequence.cached_tokens += sequence.transfer_tokens
        scheduler.arrived(sequence, tokens)
        return True

    def hold(self, request: EngineRequest | LengthRequest, most_tokens: int | None = None) -> Sequence | None:
        """Keep the leading full blocks of a prompt that are cached, as `release_held` ends it; None: none is.

        `most_tokens`: not more of them. Raises as `add` does. Not in a step, where the request has contents: blocks
        that the step computes are among the cached ones already. Who holds blocks in a run of steps cuts it first.
        """
        sequence: Sequence
        if isinstance(request, LengthRequest):
            self._check_lengths(request)
            sequence = LengthSequence(request, self.config.max_model_len, hashed=self.config.prefix_caching)
        elif self._step is not None:
            raise RuntimeError("a step has begun: finish it first")
        else:
            sequence = self._token_sequences(request)[0]
        if not self._scheduler.hold(sequence, most_tokens):
            return None
        sequence.state = SequenceState.FINISHED
        self._held[request.id] = sequence
        return sequence

    def release_held(self, request_id: str) -> bool:
        """Free the blocks that a finished request at the prefill stage holds; False when there are none."""
        sequence = self._held.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.release(sequence)
        return True

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks, in all tiers; refused (False) while sequences hold blocks."""
        scheduler = self._scheduler
        if not scheduler.pool.clear_cache():
            return False
        if scheduler.tiers is not None:
            scheduler.tiers.clear()
        scheduler.events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        """KV events that no step has handed out yet."""
        events = self._scheduler.events
        self._scheduler.events = []
        return events

    def begin_step(
        self, now_ms: float, most_steps: int = 1, slow: float = 1.0, noise: NDArray[np.float64] | None = None
    ) -> Step | None:
        """Choose what to compute next; None when nothing can be computed now.

        A step that only decodes becomes a run of up to `most_steps` alike: it ends with the step in which a sequence
        finishes, and before one that admits or preempts somebody. `slow`: computing takes that many times as long.
        `noise`: each of the next steps takes so many times as long, besides; `most_steps` factors, or none.
        """
        if self._step is not None:
            raise RuntimeError("a step has begun already: finish it first")
        scheduler = self._scheduler
        batch = scheduler.schedule(now_ms)
        if not batch.chunks and not batch.decodes:
            return None
        steps = 1 if batch.chunks or most_steps == 1 else scheduler.steps_ahead(most_steps)
        self._first_tick = scheduler.decoders.ticks
        self._step = Step(batch, steps, self.config.step, now_ms, slow, noise)
        return self._step

    def look(self, now_ms: float) -> None:
        """Bring lengths, KV use and events of a run up to `now_ms`, without ending it."""
        step = self._step
        if step is not None and step.steps > 1:
            self._scheduler.open_steps(self._first_tick + step.begun_by(now_ms))

    def take_step_events(self, now_ms: float, apart_ms: float) -> list[tuple[float, list[KvEvent]]]:
        """KV events of the steps of a run that have begun at `now_ms`, step by step, with the ms when the step ends.

        Those of steps that ended `apart_ms` ago or earlier come together. Lengths and KV use are brought up to then.
        """
        step = self._step
        if step is None or step.steps == 1:
            return []
        begun = step.begun_by(now_ms)
        first = begun - 1
        while first > 1 and step.end_ms(first) > now_ms - apart_ms:
            first -= 1
        told = []
        for count in range(max(1, first), begun + 1):
            self._scheduler.open_steps(self._first_tick + count)
            events = self.take_events()
            if events:
                told.append((step.end_ms(count), events))
        return told

    def cut_step(self, now_ms: float) -> float:
        """Something happens at `now_ms`: a run ends with the step that is computed then. The new duration of it all."""
        step = self._step
        if step is None:
            raise RuntimeError("no step has begun")
        if step.steps > 1:
            step.steps = step.begun_by(now_ms)
            self._scheduler.open_steps(self._first_tick + step.steps)
        return step.duration_ms

    def finish_step(self, now_ms: float) -> StepResult:
        """The step that had begun is computed: a token for each sequence whose tokens are all computed now."""
        step = self._step
        if step is None:
            raise RuntimeError("no step has begun")
        self._step = None
        scheduler = self._scheduler
        result = StepResult(steps=step.steps, decodes=scheduler.decoders.count)
        result.finished = scheduler.close_steps(self._first_tick + step.steps)
        for sequence, count in step.batch.chunks:
            if sequence.state is not SequenceState.RUNNING:
                continue  # aborted while the step ran
            if scheduler.computed(sequence, count):
                self._got_token(sequence, now_ms, result)
        for sequence in result.finished:
            self._finish(sequence)
        self._counters.steps += step.steps
        result.tokens, scheduler.tokens = scheduler.tokens, []
        result.events = self.take_events()
        return result

    def _got_token(self, sequence: Sequence, now_ms: float, result: StepResult) -> None:
        if sequence.first_token_ms is None:
            sequence.first_token_ms = now_ms
            result.first.append(sequence)
            cached = sequence.cached_tokens or 0
            fetched = sequence.transfer_tokens or 0
            self._counters.prompt_tokens_transferred += fetched
            self._counters.prompt_tokens_cached += cached - fetched
            self._counters.prompt_tokens_computed += sequence.prompt_length - cached
        elif sequence.preempted_ms is not None:
            result.resumed.append((sequence, now_ms - sequence.preempted_ms))
        sequence.preempted_ms = None
        if sequence.decoders is None:
            result.finished.append(sequence)

    def _finish(self, sequence: Sequence) -> None:
        scheduler = self._scheduler
        scheduler.leave(sequence)
        sequence.state = SequenceState.FINISHED
        if sequence.stage is Stage.PREFILL and not sequence.index:
            self._held[sequence.request.id] = sequence
        else:
            scheduler.release(sequence)
        self._counters.finished += 1
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        siblings = self._sequences[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.id]

    def _token_sequences(self, request: EngineRequest) -> list[Sequence]:
        if not request.prompt:
            raise RequestRefusedError("the prompt is empty: at least one token is needed")
        if request.max_tokens < 1 or request.sequences < 1:
            raise RequestRefusedError("max_tokens and sequences must be at least 1")
        self._check(request.id, len(request.prompt))
        config = self.config
        tokens = array("I", request.prompt)
        seed = root_seed(request.lora_name, request.cache_salt)
        hashes = prompt_hashes(tokens, config.block_size, seed) if config.prefix_caching else []
        target = min(len(tokens) + request.max_tokens, config.max_model_len)
        return [
            self._sequence_type(request, index, tokens[:], hashes[:], seed, context_digest(tokens, salt=index), target)
            for index in range(request.sequences)
        ]

    def _check_lengths(self, request: LengthRequest) -> None:
        if request.prompt_tokens < 1:
            raise RequestRefusedError("the prompt is empty: at least one token is needed")
        if request.output_tokens < 1:
            raise RequestRefusedError(f"output_tokens is {request.output_tokens}: at least one is needed")
        self._check(request.id, request.prompt_tokens)
        size = self.config.block_size
        full = request.prompt_tokens // size
        blocks, answer = len(request.block_hashes), len(request.answer_hashes)
        if blocks > full or (answer and blocks < full):
            raise RequestRefusedError(
                f"{blocks} block_hashes and {answer} answer_hashes for a prompt that fills {full} blocks of {size}"
            )

    def _check(self, request_id: str, prompt_tokens: int) -> None:
        if prompt_tokens >= self.config.max_model_len:
            raise RequestRefusedError(
                f"the prompt has {prompt_tokens} tokens; with max_model_len {self.config.max_model_len} "
                "there is no room for an answer"
            )
        if request_id in self._sequences or request_id in self._held:
            raise RequestRefusedError(f"request id {request_id!r} is in use")
