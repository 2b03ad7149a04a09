"""Which workers can pass KV on to which, how much that is for one request, and whether there is room for it."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import (
    KV_GIVES,
    KV_PARTS,
    KV_TAKES,
    STAGE_DECODE,
    STAGE_PREFILL,
    Column,
    Exclusion,
    FleetView,
)

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

_OFF = TransferMode.OFF
_MOST_PAIRED = 64
"""Workers of which all pairs are kept."""
USUAL_TOKEN_BYTES = 131_072
"""KV of a token where no engine says: Llama-3.1-8B in 16 bits; other models have 23,040 to 327,680 (time-model.md)."""
BYTES_UNKNOWN = f"nobody says how many bytes a token's KV has: {USUAL_TOKEN_BYTES:,} were assumed"

_READABLE = np.array(
    [
        reason
        in (
            Exclusion.NONE,
            Exclusion.ROLE,
            Exclusion.QUEUE_FULL,
            Exclusion.AT_CAP,
            Exclusion.GPU_BUSY,
            Exclusion.KV_SHORT,
        )
        for reason in Exclusion
    ]
)
"""By reason: the worker is well, so what it holds can be read, however much it has to do."""


def moves(view: FleetView) -> bool:
    """Whether plans that move KV are thought of at all."""
    return bool(np.count_nonzero(view.table[Column.KV_GROUP])) and view.transfer.mode is not _OFF


class Passing(NamedTuple):
    """What workers can pass on to each other by what they are, whatever they do now; made once for a fleet."""

    gives: Mask
    """It can compute a prompt for another one."""
    takes: Mask
    """It can go on with what another one computed."""
    apart: Floats | None
    """0 where the one in the row can compute prompts for the one in the column, else infinite; None: many workers."""
    any_apart: bool
    shares: Mask
    """It can pass cached blocks on."""
    pull: Floats | None
    """0 where the one in the row can pass cached blocks on to the one in the column, else infinite; the same."""
    any_pull: bool
    only_prompts: Floats
    """1: it computes prompts only."""
    any_only_prompts: bool
    any_both: bool
    """Some of those who give do more than prompts."""
    token_bytes: Floats
    """KV of a token; `USUAL_TOKEN_BYTES` where nobody says."""
    bytes_known: bool
    """All say."""
    least_bytes: float
    """Of KV of a token, among them."""
    never_gives: Floats
    """0 where it can compute a prompt for another one, else infinite."""
    never_takes: Floats
    """0 where it can go on with what another one computed, else infinite."""
    never_fetches: Floats
    """0 where it can fetch the beginning of a prompt, else infinite."""
    group: NDArray[np.int64]
    fetches: Mask
    """It can fetch the beginning of a prompt."""

    def kept_from(self, givers: Rows | None, answers: Rows | None, *, apart: bool) -> Floats:
        """0 where the one in the row can pass on to the one in the column, else infinite. None: all of them.

        Of many workers only those that are asked for are looked at, as all pairs of 1,000 take 8 MB.
        """
        kept = self.apart if apart else self.pull
        if kept is None:
            count = len(self.group)
            givers = np.arange(count) if givers is None else givers
            answers = np.arange(count) if answers is None else answers
            gives, takes = (self.gives, self.takes) if apart else (self.shares, self.fetches)
            return np.where(_possible(self.group, gives, takes, givers, answers), 0.0, np.inf)
        if answers is None:
            return kept if givers is None else kept[givers]
        return kept[np.ix_(np.arange(len(kept)) if givers is None else givers, answers)]


def passing(view: FleetView) -> Passing:
    """Of the workers of a view."""
    return _passing(view.table[Column.STAGES : Column.KV_TOKEN_BYTES + 1].tobytes())


@functools.lru_cache(maxsize=64)
def _passing(columns: bytes) -> Passing:
    stages, group, sides, size = np.frombuffer(columns, dtype=np.int64).reshape(4, -1)
    known = group != 0
    prompts, answers = stages & STAGE_PREFILL != 0, stages & STAGE_DECODE != 0
    gives, takes = known & prompts & (sides & KV_GIVES != 0), known & answers & (sides & KV_TAKES != 0)
    some, parts = known & (sides & KV_GIVES != 0) & (sides & KV_PARTS != 0), takes & (sides & KV_PARTS != 0)
    only = stages == STAGE_PREFILL
    every = np.arange(len(group))
    apart, pull = _possible(group, gives, takes, every, every), _possible(group, some, parts, every, every)
    few = len(group) <= _MOST_PAIRED
    token_bytes = np.where(size > 0, size, USUAL_TOKEN_BYTES).astype(np.float64)
    return Passing(
        gives,
        takes,
        np.where(apart, 0.0, np.inf) if few else None,
        bool(apart.any()),
        some,
        np.where(pull, 0.0, np.inf) if few else None,
        bool(pull.any()),
        only.astype(np.float64),
        bool(only.any()),
        bool((gives & ~only).any()),
        token_bytes,
        bool((size > 0).all()),
        float(token_bytes.min()),
        np.where(gives, 0.0, np.inf),
        np.where(takes, 0.0, np.inf),
        np.where(parts, 0.0, np.inf),
        group,
        parts,
    )


def _possible(group: NDArray[np.int64], gives: Mask, takes: Mask, givers: Rows, answers: Rows) -> Mask:
    same = group[givers][:, None] == group[answers]
    possible: Mask = same & (givers[:, None] != answers) & gives[givers][:, None] & takes[answers]
    return possible


def giving_rows(view: FleetView) -> Rows:
    """Workers that may compute the prompt for another one, and can pass it on."""
    rows = view.prefill_rows()
    return rows[_can(view, rows, KV_GIVES)]


def taking_rows(view: FleetView) -> Rows:
    """Workers that may answer the request, and can go on with what another one computed."""
    rows = view.eligible_rows()
    return rows[_can(view, rows, KV_TAKES)]


def source_rows(view: FleetView) -> Rows:
    """Workers of which the beginning of the prompt can be fetched: they hold some of it, by their own word."""
    table = view.table
    held = (table[Column.CACHED_TOKENS] > 0) & (table[Column.EXACT] == 1) & _READABLE[table[Column.EXCLUSION]]
    rows: Rows = (held & passing(view).shares).nonzero()[0]
    return rows


def fetching_rows(view: FleetView) -> Rows:
    """Workers that may answer the request, and can fetch its beginning."""
    rows = view.eligible_rows()
    return rows[_can(view, rows, KV_TAKES + KV_PARTS)]


def _can(view: FleetView, rows: Rows, sides: int) -> Mask:
    can: Mask = (view.table[Column.KV_GROUP, rows] != 0) & (view.table[Column.KV_SIDES, rows] & sides == sides)
    return can


def pairs(view: FleetView, givers: Rows, takers: Rows) -> Mask:
    """True where the one in the row can pass KV on to the one in the column."""
    group = view.table[Column.KV_GROUP]
    possible: Mask = (group[givers][:, None] == group[takers]) & (givers[:, None] != takers)
    return possible


def some_pair(view: FleetView) -> bool:
    """Whether the prompt can be computed by one worker for another one at all."""
    return bool(pairs(view, giving_rows(view), taking_rows(view)).any())


def token_bytes(view: FleetView, givers: Rows) -> NDArray[np.float64]:
    """KV bytes of a token that each of them gives; `USUAL_TOKEN_BYTES` where nobody says."""
    told = view.table[Column.KV_TOKEN_BYTES, givers]
    sizes: NDArray[np.float64] = np.where(told > 0, told, USUAL_TOKEN_BYTES).astype(np.float64)
    return sizes


def free_tokens(view: FleetView) -> Floats:
    """KV tokens of each worker that nobody holds or was promised; infinite where its capacity is not known.

    Held is what the engine says, as requests share what they have in common; where it does not say, what our requests
    take one by one. Promised is room for what is on its way there. Prompts that wait to be computed there hold nothing.
    """
    table = view.table
    capacity, held = table[Column.KV_CAPACITY_TOKENS], table[Column.KV_TOKENS]
    told = table[Column.KV_USED_TOKENS]
    if np.count_nonzero(told):
        coming = incoming(view)
        promised = coming * held / np.maximum(table[Column.RUNNING], 1)
        held = np.where(told > 0, told + promised, held)
    free: Floats = np.where(capacity > 0, capacity - held, np.inf)
    return free


def incoming(view: FleetView) -> Floats:
    """Requests of ours whose KV is on its way to each worker, or will be: where no prompts wait to be computed, all
    that wait for a first token."""
    table = view.table
    waiting = table[Column.WAITING_FIRST] * (table[Column.PREFILL_TOKENS] == 0)
    coming: Floats = np.maximum(table[Column.TRANSFERS_IN], waiting)
    return coming


def needed_tokens(request: Request, view: FleetView) -> float:
    """KV tokens that the prompt and the expected answer take where the request is answered."""
    return request.prompt_tokens + request.sequences * view.outlook.output_tokens


def no_room(free: float, needed: float) -> str:
    """Why a plan was excluded, in words."""
    return f"would not fit: {max(0.0, free):,.0f} KV tokens are free, {needed:,.0f} are needed"


def too_large(size_bytes: float, most_bytes: int) -> str:
    """Why a plan was excluded, in words."""
    return f"{size_bytes:,.0f} bytes would be moved, {most_bytes:,} are allowed"


def stages_apart(view: FleetView) -> bool:
    """Whether there are workers for prompts only, which may compute this one."""
    rows = view.prefill_rows()
    return bool(np.count_nonzero(view.table[Column.STAGES, rows] == STAGE_PREFILL))
