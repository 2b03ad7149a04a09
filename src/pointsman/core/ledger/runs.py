"""Leading runs in bit masks: how far each slot holds a prompt from its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

Masks = list[int]
"""One for each leading block of a prompt: bit n is set where slot n holds the block."""
MaskOf = Callable[[int], int | None]
"""The mask of one block key."""


def leading_masks(holders: Mapping[int, int], keys: Sequence[int]) -> Masks:
    """The masks of a prompt's blocks, up to the first one that nobody holds."""
    masks: Masks = []
    with suppress(KeyError):  # what came before the missing key stays in the list: all of it at C speed
        masks.extend(map(holders.__getitem__, keys))
    return masks


def leading_runs(held: Masks) -> dict[int, int]:
    """Slot → in how many leading masks its bit is set; slots with none are left out."""
    if not held or not held[0]:
        return {}
    first = held[0]
    matched: dict[int, int] = {}
    if held.count(first) == len(held):
        settle(matched, first, len(held))
        return matched
    alive = first
    for blocks, mask in enumerate(held):
        here = mask & alive
        if here != alive:
            settle(matched, alive & ~here, blocks)
            alive = here
            if not alive:
                break
    settle(matched, alive, len(held))
    return matched


def extend_runs(runs: dict[int, int], keys: Sequence[int], also: MaskOf, held: MaskOf) -> None:
    """Lengthen runs by blocks that `also` adds to what is `held`; looks only at where each run ends."""
    ends: dict[int, int] = {}
    everybody = 0
    for slot, blocks in runs.items():
        ends[blocks] = ends.get(blocks, 0) | 1 << slot
        everybody |= 1 << slot
    ends[0] = ~everybody
    for start, slots in ends.items():
        alive = (also(keys[start]) or 0) & slots if start < len(keys) else 0
        blocks = start
        while alive:
            blocks += 1
            here = ((also(keys[blocks]) or 0) | (held(keys[blocks]) or 0)) & alive if blocks < len(keys) else 0
            if here != alive:
                settle(runs, alive & ~here, blocks)
                alive = here


def settle(matched: dict[int, int], slots: int, blocks: int) -> None:
    """All these slots hold so many leading blocks."""
    if not blocks:
        return
    while slots:
        low = slots & -slots
        matched[low.bit_length() - 1] = blocks
        slots ^= low
