"""Block ids of a whole trace as one array of small numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from pointsman.core.workload.trace import Trace, TraceRequest

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]
_ROOM = 4
"""Ids are used as they are while they are less than so many times their number: sorting them would take longer."""


def _blocks(requests: Sequence[TraceRequest]) -> Iterator[int]:
    return chain.from_iterable(chain(request.block_ids, request.answer_block_ids) for request in requests)


class BlockArrays:
    """For each request the blocks of its prompt, and what it leaves in a cache: prompt and answer.

    Blocks are numbered from 0 to below `count`. Equal ids of different models are different blocks: no cache serves
    two models.
    """

    def __init__(self, trace: Trace) -> None:
        requests = trace.requests
        self.block_tokens = trace.block_tokens
        prompts = np.array([len(request.block_ids) for request in requests], dtype=np.int64)
        answers = np.array([len(request.answer_block_ids) for request in requests], dtype=np.int64)
        lengths = prompts + answers
        try:
            ids = np.fromiter(_blocks(requests), dtype=np.int64, count=int(lengths.sum()))
        except OverflowError:  # hashes of 64 bits without sign
            numbered: dict[int, int] = {}
            ids = np.array([numbered.setdefault(block, len(numbered)) for block in _blocks(requests)], dtype=np.int64)
        models = {model: number for number, model in enumerate(dict.fromkeys(request.model for request in requests))}
        ends = np.cumsum(lengths)
        if len(models) > 1:
            if ids.size and (ids.min() < 0 or ids.max() >= np.iinfo(np.int64).max // len(models)):
                ids = np.unique(ids, return_inverse=True)[1]
            # In place and piece by piece: long traces have hundreds of megabytes of ids.
            for start, end, request in zip([0, *ends[:-1].tolist()], ends.tolist(), requests, strict=True):
                piece = ids[start:end]
                piece *= len(models)
                piece += models[request.model]
        if ids.size and (ids.min() < 0 or ids.max() > _ROOM * ids.size + 1_000_000):
            ids = np.unique(ids, return_inverse=True)[1]
        self.count = int(ids.max()) + 1 if ids.size else 0
        self._ids = ids
        self._ends = ends
        self._prompts = prompts

    def prompt(self, position: int) -> Int64s:
        """Blocks of the prompt of one request, a last one that is not full included."""
        start = self._start(position)
        return self._ids[start : start + self._prompts[position]]

    def left(self, position: int, request: TraceRequest) -> Int64s:
        """What it leaves in a cache, in the order of the text; a last prompt block that is not full, at the end."""
        start, end = self._start(position), int(self._ends[position])
        middle = start + int(self._prompts[position])
        full = min(request.prompt_tokens // self.block_tokens, middle - start) if self.block_tokens else middle - start
        if middle == end or start + full == middle:
            return self._ids[start:end]
        return np.concatenate(
            (self._ids[start : start + full], self._ids[middle:end], self._ids[start + full : middle])
        )

    def distinct(self) -> int:
        """How many different blocks there are."""
        return int(np.count_nonzero(np.bincount(self._ids, minlength=1))) if self._ids.size else 0

    def _start(self, position: int) -> int:
        return int(self._ends[position - 1]) if position else 0
