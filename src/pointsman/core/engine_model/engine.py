"""One modelled engine: requests in; tokens, KV events and counters out, step by step.

It has no clock: whoever drives it says what time it is and waits (or does not wait) until a step's end.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from pointsman.core.engine_model.block_hash import prompt_hashes, root_seed
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.events import AllBlocksCleared, KvEvent
from pointsman.core.engine_model.scheduler import Batch, Scheduler
from pointsman.core.engine_model.sequence import EngineRequest, Sequence, SequenceState
from pointsman.core.engine_model.token_source import context_digest
from pointsman.core.model.errors import EngineError


class RequestRefusedError(EngineError):
    """An engine can't compute a request, whatever its load."""


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started."""

    steps: int = 0
    prompt_tokens_computed: int = 0
    """Prompt tokens that were computed here, each once, counted when their request's first token came."""
    prompt_tokens_cached: int = 0
    """Prompt tokens taken from the prefix cache, counted at the same moment."""
    generated_tokens: int = 0
    finished: int = 0
    """Sequences that generated everything that they were asked for."""
    aborted: int = 0
    """Sequences taken out before that."""


@dataclass(slots=True)
class StepResult:
    """What a step brought."""

    tokens: list[tuple[Sequence, int]] = field(default_factory=list)
    """Each sequence that got a token, and the token."""
    finished: list[Sequence] = field(default_factory=list)
    """Those among them for which it was the last one."""
    events: list[KvEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that has begun."""

    duration_ms: float
    batch: Batch


class EngineModel:
    """Continuous batching over a paged KV cache, in modelled time.

    `begin_step` then `finish_step` with the step's duration between them; requests may come and be aborted in between.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.counters = EngineCounters()
        self._scheduler = Scheduler(config)
        self._sequences: dict[str, list[Sequence]] = {}
        self._step: Step | None = None

    @property
    def running(self) -> int:
        """Sequences that hold KV blocks."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, preempted ones included."""
        return len(self._scheduler.waiting)

    @property
    def preemptions(self) -> int:
        """Preemptions since the start."""
        return self._scheduler.preemptions

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks that sequences hold, 0..1."""
        return self._scheduler.pool.used / self.config.num_blocks

    @property
    def in_step(self) -> bool:
        """Whether a step has begun and not finished."""
        return self._step is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._scheduler.running and not self._scheduler.waiting

    def cached_hashes(self) -> list[int]:
        """Hashes of all blocks that a new request could reuse: the truth that KV events report."""
        return self._scheduler.pool.cached_hashes()

    def requests(self) -> list[Sequence]:
        """Sequences that are running or waiting."""
        return [*self._scheduler.running, *self._scheduler.waiting]

    def add(self, request: EngineRequest) -> tuple[Sequence, ...]:
        """Queue a request; one sequence for each of its answers.

        Raises `RequestRefusedError` for a prompt that is empty or leaves no room for an answer, or an id in use.
        """
        self._check(request)
        tokens = array("I", request.prompt)
        seed = root_seed(request.lora_name, request.cache_salt)
        caching = self.config.prefix_caching
        hashes = prompt_hashes(tokens, self.config.block_size, seed) if caching else []
        target = min(len(tokens) + request.max_tokens, self.config.max_model_len)
        sequences = [
            Sequence(request, index, tokens[:], hashes[:], seed, context_digest(tokens, salt=index), target)
            for index in range(request.sequences)
        ]
        self._sequences[request.id] = list(sequences)
        self._scheduler.waiting.extend(sequences)
        return tuple(sequences)

    def abort(self, request_id: str) -> bool:
        """Take a request out, in whatever state it is; False when there is none of that id."""
        sequences = self._sequences.get(request_id)
        if sequences is None:
            return False
        for sequence in list(sequences):
            self.abort_sequence(sequence)
        return True

    def abort_sequence(self, sequence: Sequence) -> bool:
        """Take one answer out and leave its siblings; False when it has ended already."""
        if sequence.state not in (SequenceState.WAITING, SequenceState.RUNNING):
            return False
        self._scheduler.drop(sequence, SequenceState.ABORTED)
        self.counters.aborted += 1
        self._forget(sequence)
        return True

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; refused (False) while sequences hold blocks."""
        if not self._scheduler.pool.clear_cache():
            return False
        self._scheduler.events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        """KV events that no step has handed out yet."""
        events = self._scheduler.events
        self._scheduler.events = []
        return events

    def begin_step(self, now_ms: float) -> Step | None:
        """Choose what to compute next; None when there is nothing."""
        if self._step is not None:
            raise RuntimeError("a step has begun already: finish it first")
        batch = self._scheduler.schedule(now_ms)
        if not batch.entries:
            return None
        duration_ms = self.config.step.step_ms(batch.decodes, batch.context_tokens, batch.prefill_tokens)
        self._step = Step(duration_ms, batch)
        return self._step

    def finish_step(self, now_ms: float) -> StepResult:
        """The step that had begun is computed: a token for each sequence whose tokens are all computed now."""
        step = self._step
        if step is None:
            raise RuntimeError("no step has begun")
        self._step = None
        result = StepResult()
        output_ids = self.config.output_ids
        for sequence, count in step.batch.entries:
            if sequence.state is not SequenceState.RUNNING:
                continue  # aborted while the step ran
            sequence.computed += count
            length = len(sequence.tokens)
            if sequence.computed < length:
                continue
            if sequence.first_token_ms is None:
                self._first_token(sequence, now_ms)
            result.tokens.append((sequence, sequence.generate(output_ids)))
            if length + 1 >= sequence.target_length:
                result.finished.append(sequence)
        if result.finished:
            self._finish(result.finished)
        self.counters.steps += 1
        self.counters.generated_tokens += len(result.tokens)
        result.events = self.take_events()
        return result

    def _check(self, request: EngineRequest) -> None:
        if not request.prompt:
            raise RequestRefusedError("the prompt is empty: at least one token is needed")
        if len(request.prompt) >= self.config.max_model_len:
            raise RequestRefusedError(
                f"the prompt has {len(request.prompt)} tokens; with max_model_len {self.config.max_model_len} "
                "there is no room for an answer"
            )
        if request.max_tokens < 1 or request.sequences < 1:
            raise RequestRefusedError("max_tokens and sequences must be at least 1")
        if request.id in self._sequences:
            raise RequestRefusedError(f"request id {request.id!r} is in use")

    def _first_token(self, sequence: Sequence, now_ms: float) -> None:
        sequence.first_token_ms = now_ms
        cached = sequence.cached_tokens or 0
        self.counters.prompt_tokens_cached += cached
        self.counters.prompt_tokens_computed += sequence.prompt_length - cached

    def _finish(self, finished: list[Sequence]) -> None:
        scheduler = self._scheduler
        for sequence in finished:
            scheduler.release(sequence)
            sequence.state = SequenceState.FINISHED
            self._forget(sequence)
        scheduler.running = [s for s in scheduler.running if s.state is SequenceState.RUNNING]
        self.counters.finished += len(finished)

    def _forget(self, sequence: Sequence) -> None:
        siblings = self._sequences[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.id]
