"""Why a request was slow: each cause is named when it was put in, and no other."""

from __future__ import annotations

import pytest

from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.slow import StepTimes, slow_first_token, slow_sentence, slow_tokens
from pointsman.edge.telemetry.decision_row import DecisionRow
from support.decision_rows import WORKERS, candidate, ended

TIMES = StepTimes(token_ms=0.1, queue_ms=0.0, times_others=1.0)
OTHERS = [ended(number, WORKERS[number % 4]) for number in range(40)]
"""All is well, at all workers."""


def first(row: DecisionRow, around: list[DecisionRow], times: StepTimes | None = TIMES, *facts: WorkerFacts) -> str:
    causes = slow_first_token(row, around, {fact.worker: fact for fact in facts}, times)
    total = sum(cause.ms for cause in causes)
    assert total == pytest.approx(row.first_token_ms or 0.0), "the parts are the whole"
    return causes[0].kind


def slow(**fields: object) -> DecisionRow:
    return ended(41, **({"first_token_ms": 400.0, "ttft_ms": 400.0} | fields))


def test_a_worker_that_turned_slow() -> None:
    around = [ended(n, w, **({"ttft_ms": 400.0, "itl_ms": 40.0} if w == "a/0" else {}))
              for n, w in enumerate(WORKERS * 10)]  # fmt: skip
    row = slow(itl_ms=40.0)
    causes = slow_first_token(row, around, {}, TIMES)
    assert (causes[0].kind, causes[0].ms) == ("slow_worker", pytest.approx(300))
    assert slow_sentence(row, causes) == (
        "its first token came after 400 ms: 300 ms because a/0 takes 4.0 times as long as the others and 100 ms "
        "because 1,000 of its 1,000 prompt tokens had to be computed"
    )
    assert slow_tokens(row, around, {}, TIMES)[0].kind == "slow_worker"


def test_a_worker_known_to_be_slow() -> None:
    """Predictions have learned it, so they are right: what was predicted says it."""
    row = slow(predicted_ttft_ms=400.0, predicted_tpot_ms=40.0, itl_ms=40.0)
    assert first(row, OTHERS, StepTimes(0.4, 0.0, 4.0)) == "slow_worker"
    assert slow_tokens(row, OTHERS, {}, StepTimes(0.4, 0.0, 4.0))[0].kind == "slow_worker"


def test_a_worker_learned_to_be_slow_since() -> None:
    assert first(slow(), OTHERS, TIMES, WorkerFacts("a/0", factor=4.0)) == "slow_worker"
    quick = ended(41, first_token_ms=100.0)
    assert first(quick, OTHERS, TIMES, WorkerFacts("a/0", factor=4.0)) == "prompt", "it was not slow then"


def test_cached_tokens_that_were_not_there() -> None:
    candidates = [candidate("a/0", cached=4000), candidate("b/0")]
    row = slow(prompt_tokens=4000, cached=4000, cached_reported=0, exact=True, candidates=candidates)
    assert first(row, OTHERS) == "lost_cache"
    partial = WorkerFacts("a/0", kv_state="partial", kv_reason="12 batches were lost")
    text = slow_sentence(row, slow_first_token(row, OTHERS, {"a/0": partial}, TIMES))
    assert "4,000 tokens thought cached at a/0 were not there (its KV events are partial: 12 batches were lost)" in text


def test_what_a_worker_held_was_not_known() -> None:
    """Its events were lost: the conversation went on elsewhere, and was computed anew."""
    keys = list(range(1, 300))
    turn = ended(30, "b/0", blocks=keys[:240], prompt_tokens=3840)
    row = slow(blocks=keys[:250], prompt_tokens=4000, cached_reported=0)
    partial = WorkerFacts("b/0", kv_state="partial", kv_reason="events stopped")
    causes = slow_first_token(row, [*OTHERS, turn], {"b/0": partial}, TIMES)
    assert causes[0].kind == "unknown_cache"
    assert causes[0].text == (
        "3,824 tokens of it were computed at b/0 before, for r30, and not known to be cached (KV events of b/0 are "
        "partial: events stopped)"
    )


def test_reasons_are_told_as_they_are_braces_and_all() -> None:
    """An engine without KV events is told by which JSON to switch them on."""
    keys = list(range(1, 300))
    turn = ended(30, "b/0", blocks=keys[:240], prompt_tokens=3840)
    row = slow(blocks=keys[:250], prompt_tokens=4000, cached_reported=0)
    reason = """start it with --kv-events-config '{"enable_kv_cache_events": true}'"""
    off = WorkerFacts("b/0", kv_state="off", kv_reason=reason)
    assert reason in slow_first_token(row, [*OTHERS, turn], {"b/0": off}, TIMES)[0].text


def test_what_was_known_and_left_where_it_is_is_no_loss() -> None:
    keys = list(range(1, 300))
    turn = ended(30, "b/0", blocks=keys[:240], prompt_tokens=3840)
    candidates = [candidate("a/0"), candidate("b/0", 900.0, cached=3840)]
    row = slow(blocks=keys[:250], prompt_tokens=4000, cached_reported=0, candidates=candidates)
    assert first(row, [*OTHERS, turn]) == "prompt"


def test_a_long_prompt() -> None:
    assert first(slow(prompt_tokens=4000, predicted_ttft_ms=400.0), OTHERS) == "prompt"


def test_a_queue_that_was_foreseen() -> None:
    assert first(slow(predicted_ttft_ms=400.0), OTHERS, StepTimes(0.1, 300.0, 1.0)) == "queue"


def test_a_wait_that_nobody_foresaw() -> None:
    fact = WorkerFacts("a/0", foreign=7)
    assert first(slow(), OTHERS, TIMES, fact) == "waiting"
    assert "7 requests of others" in slow_sentence(slow(), slow_first_token(slow(), OTHERS, {"a/0": fact}, TIMES))


def test_attempts_that_failed() -> None:
    row = slow(dispatched_ms=300.0, ttft_ms=100.0, attempts=2)
    assert first(row, OTHERS) == "tries"


def test_a_stream_that_went_on_elsewhere_had_its_first_token_before() -> None:
    """None of its attempts failed before its first token, and the worker of the row had no part in that."""
    fields = {"migrations": 1, "attempts": 2, "failed_at": ["b/0"], "ttft_ms": None, "predicted_ttft_ms": None}
    row = slow(dispatched_ms=700.0, **fields)
    (cause,) = slow_first_token(row, OTHERS, {"a/0": WorkerFacts("a/0", factor=9.0)}, TIMES)
    assert (cause.kind, cause.ms) == ("earlier", 400.0)
    assert "b/0 had it then" in slow_sentence(row, [cause])
    before_any_token = slow(dispatched_ms=300.0, **(fields | {"ttft_ms": 100.0}))
    assert first(before_any_token, OTHERS) == "tries"


def test_the_pause_of_a_stream_that_went_on_elsewhere_makes_no_slow_worker() -> None:
    row = slow(migrations=1, output_tokens=101, itl_ms=40.0, gap_ms=3_000.0, predicted_tpot_ms=None)
    causes = slow_tokens(row, OTHERS, {"a/0": WorkerFacts("a/0", factor=9.0)}, TIMES)
    assert [(cause.kind, cause.ms) for cause in causes] == [("moved", 30.0), ("batch", 10.0)]
    assert "went on elsewhere 1 time" in slow_sentence(row, causes, "tokens")


def test_nothing_came_or_nobody_took_it() -> None:
    assert slow_first_token(ended(1, first_token_ms=None), OTHERS, {}, TIMES) == []
    assert slow_first_token(ended(1, None), OTHERS, {}, TIMES) == []
    assert slow_tokens(ended(1, itl_ms=None), OTHERS, {}, TIMES) == []
    assert slow_sentence(ended(1), []) == ""


def test_without_the_state_the_requests_around_tell_how_long_a_token_takes() -> None:
    assert first(slow(prompt_tokens=4000, predicted_ttft_ms=400.0), OTHERS, None) == "prompt"
    candidates = [candidate("a/0", cached=4000), candidate("b/0")]
    row = slow(prompt_tokens=4000, cached=4000, cached_reported=0, candidates=candidates)
    assert first(row, OTHERS, None) == "lost_cache"


def test_a_busy_worker_is_not_a_slow_one() -> None:
    """Predictions that know nothing of load are off by as much as there is of it."""
    busy = [candidate("a/0", load=7), candidate("b/0")]
    around = [
        ended(n, w, **({"ttft_ms": 400.0, "itl_ms": 40.0, "candidates": busy} if w == "a/0" else {}))
        for n, w in enumerate(WORKERS * 10)
    ]
    assert first(slow(itl_ms=40.0, candidates=busy), around) == "waiting"


def test_tokens_that_came_together_say_nothing_of_speed() -> None:
    around = [ended(n, w, itl_ms=12.0 if w == "a/0" else 0.001) for n, w in enumerate(WORKERS * 10)]
    assert first(slow(itl_ms=12.0), around) == "waiting"


def test_requests_whose_cached_tokens_were_lost_make_no_slow_worker() -> None:
    gone: dict[str, object] = {"prompt_tokens": 4000, "cached": 4000, "cached_reported": 0, "exact": True,
                               "candidates": [candidate("a/0", cached=4000), candidate("b/0")]}  # fmt: skip
    around = [
        ended(n, w, **(gone | {"ttft_ms": 400.0, "first_token_ms": 400.0} if w == "a/0" else {}))
        for n, w in enumerate(WORKERS * 10)
    ]
    causes = slow_first_token(slow(**gone), around, {}, TIMES)
    assert causes[0].kind == "lost_cache"
    assert "slow_worker" not in {cause.kind for cause in causes}


def test_a_token_takes_as_long_as_the_requests_around_show() -> None:
    """What had been learned until then was far too little."""
    around = [
        ended(n, "a/0", prompt_tokens=tokens, first_token_ms=20 + tokens / 10, ttft_ms=20 + tokens / 10)
        for n, tokens in enumerate([100, 200, 3000, 4000])
    ]
    candidates = [candidate("a/0", cached=4000), candidate("b/0")]
    row = slow(prompt_tokens=4000, cached=3500, cached_reported=0, exact=True, candidates=candidates)
    causes = slow_first_token(row, around, {}, StepTimes(0.0001, 0.0, 1.0))
    assert (causes[0].kind, causes[0].ms) == ("lost_cache", pytest.approx(350, rel=0.06))
