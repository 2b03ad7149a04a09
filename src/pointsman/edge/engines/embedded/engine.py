"""EmbeddedEngine: the modelled engine's scheduling with a real model under it. No clock, thread or event loop."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.embedded.batch import Part
from pointsman.edge.engines.embedded.computed_sequence import ComputedSequence
from pointsman.edge.engines.embedded.decoder import Decoder
from pointsman.edge.engines.embedded.kv_blocks import KvBlocks
from pointsman.edge.engines.embedded.pages import PagedScheduler
from pointsman.edge.engines.embedded.sampling import choose, told
from pointsman.edge.engines.embedded.weights import Array
from pointsman.edge.engines.openai_server.sampling import GREEDY, SampledRequest, Sampling


@dataclass(slots=True)
class Work:
    """One step, as the model computes it."""

    parts: list[Part]
    sequences: list[ComputedSequence]
    """One a part."""
    wanting: list[ComputedSequence]
    """Sequences that get a token, in the order of the parts that want logits."""


class EmbeddedEngine:
    """`begin`, then `compute` (which may be called in another thread), then `finish`; requests may come in between.

    `model` counts, schedules and announces as the simulated engine does: `model.add(SampledRequest(…))`.
    """

    def __init__(self, config: EngineConfig, decoder: Decoder, *, transfers: bool = False) -> None:
        """`transfers`: KV can be moved to and from other engines. EngineError where blocks and model do not fit."""
        if config.max_model_len > decoder.config.positions:
            raise EngineError(
                f"max_model_len is {config.max_model_len}, and the model knows {decoder.config.positions} positions"
            )
        self._scheduler = PagedScheduler(config)
        self.model = EngineModel(config, self._scheduler, ComputedSequence)
        self.kv = KvBlocks(
            decoder.config,
            config.num_blocks,
            config.block_size,
            fingerprint=decoder.fingerprint if transfers else "",
            shared=transfers,
        )
        self._decoder = decoder

    def begin(self, now_ms: float) -> Work | None:
        """Choose the next step; None when there is nothing to compute."""
        step = self.model.begin_step(now_ms)
        if step is None:
            return None
        work = Work([], [], [])
        for sequence in self._scheduler.decoders.writers:
            self._put(work, sequence, 1)
        for sequence, count in step.batch.chunks:
            self._put(work, sequence, count)
        return work

    def compute(self, work: Work) -> None:
        """The tokens of the step. Reads nothing that requests which come or go meanwhile change."""
        logits = iter(self._decoder.forward(work.parts, self.kv))
        for part, sequence in zip(work.parts, work.sequences, strict=True):
            sampling = sampling_of(sequence)
            if part.told:
                del sequence.prompt_told[part.first :]  # where it is computed again
                told_of = sequence.tokens[part.first + 1 : part.first + 1 + part.told]
                count = sampling.logprobs or 0
                sequence.prompt_told += [told(row, token, count) for token, row in zip(told_of, logits, strict=False)]
            if part.wanted:
                prompt, answer = sequence.tokens[: sequence.prompt_length], sequence.answer
                sequence.chosen = choose(next(logits), sampling, prompt, answer)
                if sequence.tells_prompt:
                    sequence.chosen = dataclasses.replace(sequence.chosen, prompt=tuple(sequence.prompt_told))

    def finish(self, now_ms: float) -> StepResult:
        """What the step brought."""
        return self.model.finish_step(now_ms)

    def block_of(self, block_hash: int) -> Array | None:
        """Contents of a cached block; None where it is not cached."""
        block = self._scheduler.pages.of_name(block_hash)
        return None if block is None else self.kv.block(block)

    def table(self, sequence: Sequence) -> list[int]:
        """Ids of the blocks of a sequence, from its beginning."""
        return self._scheduler.pages.table(sequence)

    def _put(self, work: Work, sequence: Sequence, count: int) -> None:
        assert isinstance(sequence, ComputedSequence)
        first = sequence.computed
        wanted = first + count == sequence.length
        tokens = np.frombuffer(sequence.tokens, np.uint32)[first : first + count].tolist()
        told_count = 0
        if sequence.tells_prompt:
            if not first:
                sequence.prompt_told = []
            told_count = max(0, min(first + count, sequence.prompt_length - 1) - first)
        work.parts.append(Part(tokens, first, self._scheduler.pages.table(sequence), wanted, told_count))
        work.sequences.append(sequence)
        if wanted:
            work.wanting.append(sequence)


def sampling_of(sequence: ComputedSequence) -> Sampling:
    """How the sequence's tokens are chosen."""
    request = sequence.request
    if not isinstance(request, SampledRequest):
        return GREEDY
    sampling = request.sampling
    return dataclasses.replace(sampling, seed=sampling.seed + sequence.index) if sequence.index else sampling
