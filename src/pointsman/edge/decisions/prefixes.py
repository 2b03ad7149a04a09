"""Rows of the decision log that share the beginnings of their prompts, by the keys of their blocks."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.edge.telemetry.decision_row import DecisionRow, unpack_keys


def block_keys(row: DecisionRow) -> list[str]:
    """Keys of the prompt's full blocks; none for a row whose keys are damaged."""
    try:
        return unpack_keys(row.blocks)
    except ValueError:
        return []


def comparable(one: DecisionRow, other: DecisionRow) -> bool:
    """Equal keys of the two mean equal prompts."""
    return (one.model, one.block_unit, one.block_size) == (other.model, other.block_unit, other.block_size)


def shared_blocks(one: list[str], other: list[str]) -> int:
    """Leading blocks that are the same: keys are chained, so the last equal one decides."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def tokens_of(row: DecisionRow, blocks: int) -> int:
    """About how many tokens so many leading blocks are."""
    if row.block_unit == "tokens":
        return min(row.prompt_tokens, blocks * row.block_size)
    if not row.prompt_bytes:
        return 0
    return min(row.prompt_tokens, round(row.prompt_tokens * blocks * row.block_size / row.prompt_bytes))


def latest_with(row: DecisionRow, earlier: Iterable[DecisionRow]) -> tuple[DecisionRow, int] | None:
    """The row before that shares most of its prompt's beginning, the latest of such; and the tokens shared."""
    keys = block_keys(row)
    best: tuple[int, float] = (0, 0.0)
    found = None
    for other in earlier:
        if other.id == row.id or other.worker is None or not comparable(row, other) or not _was_done(other, row):
            continue
        shared = shared_blocks(keys, block_keys(other))
        if (shared, other.at_ms) > best and shared:
            best, found = (shared, other.at_ms), other
    return None if found is None else (found, tokens_of(row, best[0]))


def _was_done(other: DecisionRow, row: DecisionRow) -> bool:
    """Its prompt was computed when the row was decided."""
    return other.first_token_ms is not None and other.at_ms + other.first_token_ms <= row.at_ms + (
        row.dispatched_ms or 0.0
    )
