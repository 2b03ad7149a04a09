"""Outcome: what became of each request of a simulation, and of each worker."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pointsman.app.simulate.intervals import IntervalHistogram


class Status(enum.IntEnum):
    """How a request ended."""

    DONE = 0
    REJECTED = 1
    """No worker could take it."""
    FAILED = 2
    """Its worker died, or could not be reached."""


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """What one worker did."""

    id: str
    profile: str
    gpus: int
    busy_ms: float
    """Time in which it computed."""
    gpu_ms: float
    """Time in which it held its GPUs, times their number."""
    requests: int
    """Sent there, to be answered or for their prompt to be computed."""
    prompt_tokens: int
    """Prompt tokens of the requests that it computed, cached ones included."""
    cached_tokens: int
    output_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Arrays have one entry a request, in the order of the trace. Times in ms of the trace's clock, nan = never."""

    arrival_ms: NDArray[np.float64]
    """When it came; with sessions or clients that is not when the trace says."""
    dispatched_ms: NDArray[np.float64]
    first_token_ms: NDArray[np.float64]
    end_ms: NDArray[np.float64]
    """Last token, or the error."""
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    """Generated; fewer than the trace's where the request failed or its context ended."""
    asked_tokens: NDArray[np.int64]
    """Output tokens in the trace."""
    cached_tokens: NDArray[np.int64]
    """Prompt tokens that whoever computed the prompt found in its cache, or fetched from another worker's."""
    worker: NDArray[np.int64]
    """Number of the worker that had it last; -1 = none."""
    prefill_worker: NDArray[np.int64]
    """Number of the worker that computed the prompt, where another one decoded; -1 elsewhere."""
    prefilled_ms: NDArray[np.float64]
    """When that worker had computed it."""
    kv_arrived_ms: NDArray[np.float64]
    """When KV from another worker was at the one that answered."""
    moved_tokens: NDArray[np.int64]
    """Prompt tokens whose KV came from another worker: that computed them, or held them."""
    fallback: NDArray[np.bool_]
    """KV was to be moved, and could not be."""
    status: NDArray[np.int64]
    itl: IntervalHistogram
    """Times between tokens of one answer, over all answers."""
    workers: tuple[WorkerTotals, ...]
    started_ms: float
    ended_ms: float
    """When the last request ended."""

    def __len__(self) -> int:
        return len(self.arrival_ms)

    @property
    def done(self) -> NDArray[np.bool_]:
        """True for requests that were answered."""
        mask: NDArray[np.bool_] = self.status == Status.DONE
        return mask

    @property
    def whole(self) -> NDArray[np.bool_]:
        """True for requests whose answer has all its tokens."""
        mask: NDArray[np.bool_] = self.done & (self.output_tokens >= self.asked_tokens)
        return mask

    @property
    def ttft_ms(self) -> NDArray[np.float64]:
        """Arrival to first token; nan where there was none."""
        return self.first_token_ms - self.arrival_ms

    @property
    def e2e_ms(self) -> NDArray[np.float64]:
        """Arrival to last token; nan for requests that were not answered."""
        return np.where(self.done, self.end_ms - self.arrival_ms, np.nan)

    @property
    def tpot_ms(self) -> NDArray[np.float64]:
        """(last − first token) / (tokens − 1); nan for answers of one token and requests that were not answered."""
        several = self.done & (self.output_tokens > 1)
        return np.where(several, self.end_ms - self.first_token_ms, np.nan) / np.maximum(self.output_tokens - 1, 1)

    def digest(self) -> str:
        """SHA-256 over every number: two runs are the same exactly when these are."""
        digest = hashlib.sha256()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                digest.update(value.tobytes())
            elif isinstance(value, IntervalHistogram):
                digest.update(value.weights.tobytes())
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()
