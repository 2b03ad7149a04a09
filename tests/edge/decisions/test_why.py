"""The sentence of why: true for every kind of decision, and as exact as its record."""

from __future__ import annotations

import pytest

from pointsman.edge.decisions.why import why
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedCandidate


def one(worker: str, score: float | None = None, cached: int = 0, load: int = 0, **terms: float) -> LoggedCandidate:
    return LoggedCandidate(worker, score, None, cached, load, terms)


def out(worker: str, reason: str) -> LoggedCandidate:
    return LoggedCandidate(worker, None, reason)


def row(
    policy: str, unit: str, *candidates: LoggedCandidate, worker: str | None = "b/0", **fields: object
) -> DecisionRow:
    eligible = [c for c in candidates if c.excluded is None and c.worker != worker]
    mine = next((c for c in candidates if c.worker == worker), None)
    values: dict[str, object] = {
        "id": "r1", "at_ms": 1.0, "model": "m", "status": "finished", "http": 200, "prompt_tokens": 6012,
        "prompt_from": "engine", "policy": policy, "worker": worker, "unit": unit, "workers": len(candidates),
        "candidates": list(candidates),
    }  # fmt: skip
    if eligible and mine is not None and mine.score is not None and eligible[0].score is not None:
        values |= {"runner_up": eligible[0].worker, "margin": eligible[0].score - mine.score}
    return DecisionRow(**(values | fields))  # type: ignore[arg-type]


BEST = one("b/0", 310.0, 5840, 3, ttft_ms=40.0, completion_ms=290.0, slowdown_ms=20.0)
NEXT = one("a/0", 500.0, 172, 2, ttft_ms=323.0, completion_ms=493.0, slowdown_ms=7.0)


def test_the_differences_to_the_runner_up_are_the_reasons() -> None:
    assert why(row("cost", "ms", BEST, NEXT)) == (
        "b/0 took it because it holds 5,840 of 6,012 prompt tokens (a/0: 172) and means a first token 283 ms sooner; "
        "a/0 was next, 190 ms dearer, although b/0 means 80 ms more decoding"
    )


def test_cached_tokens_are_told_of_the_prompt_that_they_were_counted_in() -> None:
    """The engine may count fewer tokens than were thought cached by the prompt's bytes."""
    told = why(row("cost", "ms", BEST, NEXT, prompt_tokens=5_000, prompt_expected=6_100))
    assert "it holds 5,840 of 6,100 expected prompt tokens (a/0: 172)" in told


def test_scores_that_are_no_numbers_are_short() -> None:
    told = why(row("own", "tokens", one("b/0", 1e300), one("a/0", 1e300)))
    assert told == "b/0 took it as own chose between equals: a/0 had the same score (1e+300 tokens)"


def test_the_time_to_the_first_token_is_taken_apart_where_the_state_tells() -> None:
    parts = {"b/0": {"queue_ms": 30.0, "prefill_ms": 10.0}, "a/0": {"queue_ms": 250.0, "prefill_ms": 73.0}}
    assert why(row("cost", "ms", BEST, NEXT), parts) == (
        "b/0 took it because it means 220 ms less queue before it and 63 ms less prefill (it holds 5,840 of 6,012 "
        "prompt tokens, a/0 172); a/0 was next, 190 ms dearer, although b/0 means 80 ms more decoding"
    )
    parts = {"b/0": {"queue_ms": 30.0, "prefill_ms": 10.0}, "a/0": {"queue_ms": 80.0, "prefill_ms": 243.0}}
    assert why(row("cost", "ms", BEST, NEXT), parts) == (
        "b/0 took it because it holds 5,840 of 6,012 prompt tokens (a/0: 172), which saves 233 ms of prefill, and it "
        "means 50 ms less queue before it; a/0 was next, 190 ms dearer, although b/0 means 80 ms more decoding"
    )


def test_what_it_holds_is_no_reason_where_it_holds_less() -> None:
    less = one("b/0", 310.0, 100, 0, ttft_ms=100.0, slowdown_ms=0.0)
    more = one("a/0", 900.0, 5000, 9, ttft_ms=300.0, slowdown_ms=600.0)
    assert "holds" not in why(row("cost", "ms", less, more))
    also = one("a/0", 900.0, 0, 9, ttft_ms=110.0, slowdown_ms=790.0)
    assert why(row("cost", "ms", less, also)).startswith(
        "b/0 took it because it means 790 ms less slowdown of the requests there; a/0 was next, 590 ms dearer"
    )


def test_terms_in_tokens() -> None:
    best = one("b/0", 428.0, 5840, 2, new_tokens=172.0, waiting_tokens=0.0, load_price_tokens=256.0, exact=1.0)
    other = one("a/0", 6012.0, 0, 0, new_tokens=6012.0, waiting_tokens=0.0, load_price_tokens=0.0, exact=1.0)
    assert why(row("kv", "tokens", best, other)) == (
        "b/0 took it because it holds 5,840 of 6,012 prompt tokens (a/0: 0), which saves 5,840 tokens of prefill; "
        "a/0 was next, 5,584 tokens dearer"
    )


def test_a_tie_is_chance_where_the_policy_leaves_it_to_chance() -> None:
    tie = [one("b/0", 10.0, ttft_ms=10.0), one("a/0", 10.0, ttft_ms=10.0), one("c/0", 12.0, ttft_ms=12.0)]
    assert why(row("cost", "ms", *tie)) == "b/0 took it by chance: a/0 had the same score (10 ms)"
    assert why(row("mine", "ms", *tie)) == "b/0 took it as mine chose between equals: a/0 had the same score (10 ms)"


def test_one_worker_only() -> None:
    assert why(row("cost", "ms", one("b/0", 10.0))) == "b/0 took it because no other worker serves m"
    assert why(row("cost", "ms", one("b/0", 10.0), out("a/0", "draining"), out("c/0", "unreachable"))) == (
        "b/0 took it because nobody else could: a/0 (draining) and c/0 (unreachable)"
    )
    pinned = "the request is pinned to another worker"
    assert why(row("cost", "ms", one("b/0", 10.0), out("a/0", pinned))) == (
        "b/0 took it because the request is pinned to it"
    )


def test_nobody() -> None:
    all_out = [out("a/0", "draining"), out("b/0", "draining"), out("c/0", "draining"), out("d/0", "unreachable")]
    assert (
        why(row("cost", "none", *all_out, worker=None)) == "nobody took it: 3 workers (draining) and d/0 (unreachable)"
    )
    assert why(row("cost", "none", *all_out, worker=None, workers=9)).endswith(" and 5 more not written down")
    assert why(row("cost", "none", worker=None)) == "nobody took it: no worker serves m"
    assert why(row("", "", worker=None, http=503)) == "nobody decided: the request ended before"
    assert why(row("", "", worker=None, http=499)) == "nobody decided: the client left before"
    assert why(row("", "", worker=None, http=500)).startswith("nobody decided: the policy failed; the log")
    able = [one("a/0", 1.0), out("b/0", "draining")]
    assert (
        why(row("mine", "x", *able, worker=None))
        == "nobody took it: mine chose no worker, though 1 worker could take it"
    )


@pytest.mark.parametrize(
    ("policy", "unit", "candidates", "expected"),
    [
        ("round_robin", "rank", [one("b/0", 3.0), one("a/0", 4.0)], "its turn: of 2 workers it got its last"),
        ("random", "none", [one("b/0", 0.0), one("a/0", 0.0)], "by chance: it was drawn from 2 workers"),
        ("session", "rank", [one("b/0", 0.0), one("a/0", 1.0)], "the request's route key belongs to it: load"),
        ("session", "rank", [one("b/0", 1.0), one("a/0", 2.0), out("c/0", "draining")], "to it, after 1 worker that"),
        ("least_loaded", "requests", [one("b/0", 1.0, load=1), one("a/0", 4.0, load=4)], "flight: 1, a/0, the next, 4"),
        (
            "power_of_two",
            "requests",
            [one("a/0", 0.0, load=0, drawn=0), one("b/0", 2.0, load=2, drawn=1), one("c/0", 5.0, load=5, drawn=1)],
            "of two drawn by chance it has fewer requests in flight: 2, c/0 5",
        ),
        (
            "power_of_two",
            "requests",
            [one("b/0", 2.0, load=2, drawn=1), one("c/0", 2.0, load=2, drawn=1)],
            "drawn first of two, c/0 is as loaded (2)",
        ),
        (
            "mine",
            "points",
            [one("b/0", 1.0), one("a/0", 2.5)],
            "its score is the lowest: 1 point, a/0, the next, 2.5 p",
        ),
        ("mine", "points", [one("b/0", 3.0), one("a/0", 2.0)], "although a/0 had the lower score (2 points, its own 3"),
        (
            "mine",
            "ms",
            [one("b/0", 3.0, walk_ms=3.0), one("a/0", 9.0, walk_ms=9.0)],
            "it means 6 ms less walk; a/0 was next, 6 ms dearer",
        ),
    ],
)
def test_every_policy_in_its_own_words(
    policy: str, unit: str, candidates: list[LoggedCandidate], expected: str
) -> None:
    assert expected in why(row(policy, unit, *candidates))


def test_what_happened_on_the_way_is_added() -> None:
    before = out("a/0", "failed for this request already")
    sentence = why(row("cost", "ms", BEST, before, attempts=2, note="nothing is known", guards_lifted=True))
    assert sentence.endswith(
        "; that was attempt 2: a/0 had it before; the operator's guards would have left nobody and were "
        "lifted; nothing is known"
    )
