from __future__ import annotations

import pytest

from pointsman.core.ledger.drift import Drift


def drifted(prompt: int, predicted: int, reported: int, *, exact: bool = True, times: int = 10) -> Drift:
    drift = Drift()
    for _ in range(times):
        drift.observe(prompt, predicted, reported, exact)
    return drift


def test_nothing_is_said_before_enough_was_seen() -> None:
    assert drifted(100, 50, 0).share is None
    assert drifted(100, 50, 0).reason(announces=False) is None


def test_a_small_drift_needs_no_reason() -> None:
    drift = drifted(1000, 520, 500)
    assert drift.share == pytest.approx(0.02)
    assert drift.reason(announces=False) is None


@pytest.mark.parametrize(
    ("predicted", "reported", "exact", "words"),
    [
        (500, 0, True, "prefix caching may be off"),
        (500, 200, True, "less than its KV events say"),
        (500, 200, False, "evicts earlier"),
        (0, 500, True, "tokenizer, chat template or block size"),
        (0, 500, False, "others send it the same prompts"),
        (100, 500, True, "late or incomplete"),
        (100, 500, False, "KV events would tell"),
    ],
)
def test_a_large_one_names_what_is_likely(predicted: int, reported: int, exact: bool, words: str) -> None:
    drift = drifted(1000, predicted, reported, exact=exact)
    assert words in (drift.reason(announces=exact) or "")


@pytest.mark.parametrize(("predicted", "reported"), [(500, 200), (100, 500)])
def test_who_sends_kv_events_is_not_told_to_send_them(predicted: int, reported: int) -> None:
    """They were not relied on for most of these requests: they are partial, or came late."""
    reason = drifted(1000, predicted, reported, exact=False).reason(announces=True) or ""
    assert "for a part of the requests only" in reason
    assert "would tell" not in reason


def test_it_forgets() -> None:
    drift = drifted(1000, 500, 0)
    for _ in range(2000):
        drift.observe(1000, 500, 500, True)
    assert drift.share == pytest.approx(0.0, abs=0.01)
