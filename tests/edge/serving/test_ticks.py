"""What looks after itself once a second, beside things that fail."""

from __future__ import annotations

import pytest

from pointsman.edge.serving.ticks import Ticks


def test_one_that_fails_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    took: list[str] = []

    def fails() -> None:
        took.append("a")
        raise ValueError("words of a prompt")

    ticks = Ticks(fails, lambda: took.append("b"))
    for _ in range(2):
        ticks.turn()
    assert took == ["a", "b", "a", "b"]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].endswith("fails: ValueError")
    assert [record.exc_info is not None for record in caplog.records] == [True, False], "its place once"
    assert not any("words" in line for line in lines)
