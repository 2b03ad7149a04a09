"""The mean time between tokens."""

from __future__ import annotations

import pytest

from pointsman.edge.telemetry.token_times import mean_itl_ms


@pytest.mark.parametrize(
    ("tokens", "events", "sequences", "expected"),
    [
        (11, 11, 1, 10.0),
        (11, 13, 1, 10.0),  # pieces with the role and the end hold no token
        (11, 4, 1, 10.0),  # pieces of several tokens
        (22, 24, 2, 10.0),  # two answers at once
        (None, 11, 1, 10.0),
        (0, 11, 1, 10.0),  # an engine that does not count
        (None, 22, 2, 10.0),
        (1, 3, 1, None),
        (None, 1, 1, None),
    ],
)
def test_by_tokens_where_they_were_counted(tokens, events, sequences, expected) -> None:
    assert mean_itl_ms(100.0, 200.0, tokens, events, sequences) == expected


def test_an_answer_in_one_piece_has_none() -> None:
    assert mean_itl_ms(None, 200.0, 11, 0) is None
