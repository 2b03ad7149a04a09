"""FleetView: what a policy sees of the workers for one request."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.outlook import NO_OUTLOOK, Outlook
from pointsman.core.model.transfer import USUAL_RULES, TransferRules
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
    AT_CAP = 10
    GPU_BUSY = 11
    KV_SHORT = 12
    TOO_FAR = 13
    FAILING = 14
    NOT_SERVING = 15
    PAUSED = 16

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
    Exclusion.AT_CAP: "as many requests of ours are there as its cap allows",
    Exclusion.GPU_BUSY: "its GPUs are busier than the threshold",
    Exclusion.KV_SHORT: "it would have less free KV than the headroom asked for",
    Exclusion.TOO_FAR: "it is farther away than allowed",
    Exclusion.FAILING: "too many of its requests failed",
    Exclusion.NOT_SERVING: "its tokens do not flow",
    Exclusion.PAUSED: "it asked for a pause",
}


class Column(enum.IntEnum):
    """Rows of the ledger's table, one value a worker; all are integers."""

    EXCLUSION = 0
    RUNNING = 1
    """Sequences of ours in flight there, of all front ends of the fleet: engines count a request for n answers as n,
    too. So it is with all that is said to be ours."""
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
    HELD_TOKENS = 14
    """KV tokens whose content it keeps, in use or cached, by its own word or by what was sent; 0 = none, or unknown."""
    WAITING_FIRST = 15
    """Requests of ours there whose first token has not come."""
    REMAINING_TOKENS = 16
    """Answer tokens that our requests there are expected to get yet."""
    JOINED_MS = 17
    """When it could be used first, on the ledger's clock; -1: it never could, or was there at the start."""
    WEIGHT_PERMILLE = 18
    """1000: an ordinary one; 2000: should get twice as much as that."""
    CAP = 19
    """RUNNING from which on it gets no more; 0 = no cap."""
    ADAPTER_MISSING = 20
    """1: it would have to load the request's LoRA adapter first."""
    GPU_USE_PERMILLE = 21
    """How busy its GPUs are; -1 = unknown."""
    TOPOLOGY_DISTANCE = 22
    """Levels of the topology, nearest first, at which it is not where the front end is: 0 = the same place."""
    MAX_SEQUENCES = 23
    """Sequences that it computes at once; 0 = unknown."""
    SLO_DECODING = 24
    """Requests of ours that decode there and were promised a time between tokens."""
    SLO_TPOT_US = 25
    """Sum of the times between tokens promised to them, in microseconds."""
    SLO_WAITING = 26
    """Requests of ours that wait there for a first token that was promised by some time."""
    SLO_DUE_MS = 27
    """Sum of the times, on the ledger's clock, by which these were promised."""
    STAGES = 28
    """What its role lets it compute: a sum of `STAGE_PREFILL` (a prompt for another one) and `STAGE_DECODE` (whole
    requests, and what others began)."""
    KV_GROUP = 29
    """Workers with the same number can pass KV on to each other; 0 = it passes none on."""
    KV_SIDES = 30
    """A sum of `KV_GIVES`, `KV_TAKES` and `KV_PARTS`: what it can do within its group."""
    KV_TOKEN_BYTES = 31
    """Of KV, a token, over all layers and GPUs; 0 = unknown."""
    NODE = 32
    """Number of the machine that it runs on, as `LinkTimes` knows machines; -1 = unknown."""
    TRANSFERS_OUT = 33
    """Transfers of KV from it under way."""
    TRANSFERS_IN = 34
    """Transfers of KV to it under way."""


STAGE_PREFILL, STAGE_DECODE = 1, 2
KV_GIVES, KV_TAKES, KV_PARTS = 1, 2, 4


NOT_ZERO = {
    Column.WEIGHT_PERMILLE: 1000,
    Column.GPU_USE_PERMILLE: -1,
    Column.JOINED_MS: -1,
    Column.STAGES: STAGE_PREFILL + STAGE_DECODE,
    Column.NODE: -1,
}
"""Values of a worker of which nothing is known, where they are not 0."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """A struct of arrays, one entry a worker that serves the request's model, copied out of the ledger.

    `table` has shape (len(Column), len(workers)), dtype int64. It belongs to the view: nobody writes to it after.
    """

    workers: tuple[WorkerId, ...]
    table: NDArray[np.int64]
    outlook: Outlook = NO_OUTLOOK
    guards_lifted: bool = False
    """The operator's guards would have left nobody, so they exclude nobody."""
    transfer: TransferRules = USUAL_RULES

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

    def prefill_rows(self) -> NDArray[np.intp]:
        """Indices of the workers that may compute the prompt for another one."""
        exclusion = self.table[Column.EXCLUSION]
        may = (exclusion == Exclusion.NONE) | (exclusion == Exclusion.ROLE)
        rows: NDArray[np.intp] = (may & (self.table[Column.STAGES] & STAGE_PREFILL != 0)).nonzero()[0]
        return rows

    @classmethod
    def of(cls, workers: Sequence[str], **columns: Sequence[int]) -> FleetView:
        """A view from plain lists, for tests and experiments: `FleetView.of(["a/0", "b/0"], running=[1, 2])`."""
        table = np.zeros((len(Column), len(workers)), dtype=np.int64)
        for column, value in NOT_ZERO.items():
            table[column] = value
        for name, values in columns.items():
            table[Column[name.upper()]] = values
        return cls(tuple(WorkerId(w) for w in workers), table)
