"""The search for the hardest rung that holds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pointsman.app.advice.search import Search


@given(st.integers(1, 300), st.data())
def test_finds_the_last_rung_that_holds_wherever_it_starts(rungs: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(-1, rungs - 1))
    search = Search(rungs, data.draw(st.integers(-5, rungs + 5)))
    asked = []
    while (rung := search.next_rung()) is not None:
        asked.append(rung)
        search.tell(rung, rung <= last)
    assert search.found
    assert search.held == last
    assert len(asked) == len(set(asked)) <= 2 * math.log2(rungs) + 4


def test_near_the_start_few_tries_are_enough() -> None:
    search = Search(1000, 500)
    asked = []
    while (rung := search.next_rung()) is not None:
        asked.append(rung)
        search.tell(rung, rung <= 500)
    assert asked == [500, 501]


@given(st.integers(1, 60), st.integers(0, 59), st.lists(st.booleans(), min_size=60, max_size=60))
def test_ends_even_where_harder_ones_hold_and_easier_ones_do_not(rungs: int, start: int, holds: list[bool]) -> None:
    search = Search(rungs, start)
    for _ in range(60):
        rung = search.next_rung()
        if rung is None:
            break
        search.tell(rung, holds[rung])
    assert search.found
    assert search.held == -1 or holds[search.held]
