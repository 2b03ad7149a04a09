from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ledger.runs import extend_runs, leading_masks, leading_runs

MASKS = st.lists(st.integers(0, 15), max_size=8)
HELD = st.none() | st.integers(1, 15)


def naive(masks: list[int]) -> dict[int, int]:
    runs = {}
    for slot in range(4):
        blocks = 0
        while blocks < len(masks) and masks[blocks] >> slot & 1:
            blocks += 1
        if blocks:
            runs[slot] = blocks
    return runs


@given(MASKS)
def test_runs(masks: list[int]) -> None:
    assert leading_runs(masks) == naive(masks)


@given(st.dictionaries(st.integers(0, 6), st.integers(1, 15)), st.lists(st.integers(0, 7), max_size=8))
def test_masks_end_at_the_first_block_that_nobody_holds(holders: dict[int, int], keys: list[int]) -> None:
    found = leading_masks(holders, keys)
    assert found == [holders[key] for key in keys[: len(found)]]
    assert len(found) == len(keys) or keys[len(found)] not in holders


@given(st.lists(st.tuples(HELD, HELD), max_size=8))
def test_extended_runs_are_the_runs_of_both(pairs: list[tuple[int | None, int | None]]) -> None:
    held, also = [a for a, _ in pairs], [b for _, b in pairs]
    runs = leading_runs([mask or 0 for mask in held])
    extend_runs(runs, range(len(pairs)), also.__getitem__, held.__getitem__)
    assert runs == naive([(a or 0) | (b or 0) for a, b in pairs])
