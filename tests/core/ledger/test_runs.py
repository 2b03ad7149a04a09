from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ledger.runs import extend_runs, leading_runs

MASKS = st.lists(st.none() | st.integers(1, 15), max_size=8)


def naive(masks: list[int | None]) -> dict[int, int]:
    runs = {}
    for slot in range(4):
        blocks = 0
        while blocks < len(masks) and (masks[blocks] or 0) >> slot & 1:
            blocks += 1
        if blocks:
            runs[slot] = blocks
    return runs


@given(MASKS)
def test_runs(masks: list[int | None]) -> None:
    assert leading_runs(masks) == naive(masks)


@given(st.lists(st.tuples(st.none() | st.integers(1, 15), st.none() | st.integers(1, 15)), max_size=8))
def test_extended_runs_are_the_runs_of_both(pairs: list[tuple[int | None, int | None]]) -> None:
    held, also = [a for a, _ in pairs], [b for _, b in pairs]
    runs = leading_runs(held)
    extend_runs(runs, range(len(pairs)), also.__getitem__, held.__getitem__)
    assert runs == naive([(a or 0) | (b or 0) or None for a, b in pairs])
