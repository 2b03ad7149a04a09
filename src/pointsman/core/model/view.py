"""FleetView: what a policy sees of the workers for one request."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.worker import WorkerId


class Exclusion(enum.IntEnum):
    """Why a worker may not take this request; 0 = it may."""

    NONE = 0
    NOT_PROBED = 1
    UNREACHABLE = 2
    NOT_READY = 3
    DRAINING = 4
    QUEUE_FULL = 5
    ROLE = 6
    PINNED_ELSEWHERE = 7
    ALREADY_TRIED = 8
    CONTEXT_TOO_SMALL = 9

    @property
    def text(self) -> str:
        """The reason in words."""
        return _EXCLUSION_TEXT[self]


_EXCLUSION_TEXT = {
    Exclusion.NONE: "eligible",
    Exclusion.NOT_PROBED: "not probed yet",
    Exclusion.UNREACHABLE: "unreachable",
    Exclusion.NOT_READY: "answers, but is not ready",
    Exclusion.DRAINING: "draining",
    Exclusion.QUEUE_FULL: "its queue is at the threshold",
    Exclusion.ROLE: "its role does not fit",
    Exclusion.PINNED_ELSEWHERE: "the request is pinned to another worker",
    Exclusion.ALREADY_TRIED: "failed for this request already",
    Exclusion.CONTEXT_TOO_SMALL: "the prompt is longer than its context",
}


class Column(enum.IntEnum):
    """Rows of the ledger's table, one value a worker; all are integers."""

    EXCLUSION = 0
    RUNNING = 1
    """Sequences of ours in flight there: engines count a request for n answers as n, too."""
    FOREIGN = 2
    """Sequences there that are not ours, from the engine's own metrics."""
    PREFILL_TOKENS = 3
    """Prompt tokens dispatched there, not thought cached, whose first token has not come yet."""
    KV_TOKENS = 4
    """KV tokens that our requests in flight hold there: prompts and what was generated."""
    KV_CAPACITY_TOKENS = 5
    """0 = unknown."""
    CACHED_TOKENS = 6
    """Leading tokens of *this* request thought to be in its KV cache."""
    LAST_DISPATCH = 7
    """Sequence number of the last request sent there, 0 = none yet."""
    QUEUED = 8
    """Requests waiting at the engine, from its own metrics."""
    CONTEXT_TOKENS = 9
    """Longest prompt and answer together; 0 = unknown."""
    QUEUE_LIMIT = 10
    """0 = none."""
    OFFLOADED_TOKENS = 11
    """Further leading tokens of this request that it holds in a tier below the GPU."""
    EXACT = 12
    """1: CACHED_TOKENS is by the worker's own word (KV events); 0: by what was sent there."""
    KV_USED_TOKENS = 13
    """KV tokens that requests hold there, others' too, from the engine's own metrics; 0 = none, or unknown."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """A struct of arrays, one entry a worker that serves the request's model, copied out of the ledger.

    `table` has shape (len(Column), len(workers)), dtype int64. It belongs to the view: nobody writes to it after.
    """

    workers: tuple[WorkerId, ...]
    table: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.workers)

    def column(self, column: Column) -> NDArray[np.int64]:
        """One value a worker."""
        row: NDArray[np.int64] = self.table[column]
        return row

    @property
    def load(self) -> NDArray[np.int64]:
        """Sequences in flight, ours and others'."""
        total: NDArray[np.int64] = self.table[Column.RUNNING] + self.table[Column.FOREIGN]
        return total

    @property
    def eligible(self) -> NDArray[np.bool_]:
        """True where a worker may take the request."""
        mask: NDArray[np.bool_] = self.table[Column.EXCLUSION] == 0
        return mask

    def eligible_rows(self) -> NDArray[np.intp]:
        """Indices of the workers that may take the request."""
        rows: NDArray[np.intp] = (self.table[Column.EXCLUSION] == 0).nonzero()[0]
        return rows

    @classmethod
    def of(cls, workers: Sequence[str], **columns: Sequence[int]) -> FleetView:
        """A view from plain lists, for tests and experiments: `FleetView.of(["a/0", "b/0"], running=[1, 2])`."""
        table = np.zeros((len(Column), len(workers)), dtype=np.int64)
        for name, values in columns.items():
            table[Column[name.upper()]] = values
        return cls(tuple(WorkerId(w) for w in workers), table)
