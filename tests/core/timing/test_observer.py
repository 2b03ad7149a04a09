from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import LedgerError
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.observer import LONGEST_STEPS, SHORTEST_STEPS, ObservedLoad, WorkerObserver

STEP_MS = 20.0


def decode(observer: WorkerObserver, ids: list[str], start_ms: float, steps: int, every: int = 16) -> list[Interval]:
    """A token each for all, every STEP_MS; reports every so many tokens."""
    found = []
    for number in range(1, steps + 1):
        if number % every == 0:
            for request_id in ids:
                interval = observer.tokens(request_id, every, start_ms + number * STEP_MS)
                if interval is not None:
                    found.append(interval)
    return found


def test_the_pacer_tells_the_steps_and_the_others_the_batch() -> None:
    observer = WorkerObserver()
    for request_id, prompt in (("a", 1000), ("b", 3000)):
        observer.started(request_id, 0.0, prompt)
    for request_id in ("a", "b"):
        observer.first_token(request_id, 100.0)
    found = decode(observer, ["a", "b"], 100.0, 64)
    assert [interval.steps for interval in found] == [16, 16, 16]
    for number, interval in enumerate(found, start=1):
        assert interval.elapsed_ms == pytest.approx(16 * STEP_MS)
        assert interval.sequence_steps == pytest.approx(32)
        # Both prompts, and what was generated in the middle of the interval.
        assert interval.context_token_steps / 16 == pytest.approx(4000 + 2 * (16 * number + 8), rel=0.002)
        assert interval.prefill_tokens == 0
        assert interval.weight == 1
        assert interval.end_ms == 100 + 16 * (number + 1) * STEP_MS


def test_tokens_that_were_held_up_and_came_together_tell_nothing() -> None:
    observer = WorkerObserver()
    observer.started("a", 0.0, 100)
    observer.first_token("a", 400.0)
    assert observer.tokens("a", 1, 400.01) is None
    assert observer.tokens("a", 20, 400.02) is None, "no engine takes a step in a microsecond"
    told = observer.tokens("a", 20, 440.02)
    assert told is not None, "what comes one by one later is told by itself"
    assert (told.elapsed_ms, told.steps) == (pytest.approx(40.0), 20.0)


def test_a_prompt_counts_where_its_first_token_fell_and_is_never_cut_in_two() -> None:
    observer = WorkerObserver()
    observer.started("a", 0.0, 100)
    observer.first_token("a", 10.0)
    assert decode(observer, ["a"], 10.0, 16) == []
    observer.started("b", 400.0, 5000, cached_tokens=1000)
    # The pacer's report falls into the time in which b waits: the interval goes on.
    assert observer.tokens("a", 16, 700.0) is None
    assert observer.first_token("b", 800.0) is None
    interval = observer.tokens("a", 16, 1000.0)
    assert interval is not None
    assert interval.steps == 32
    assert interval.prefill_tokens == 4000
    assert interval.prefill_squares == 5000**2 - 1000**2
    assert interval.elapsed_ms == pytest.approx(1000 - 330)
    assert interval.sequence_steps == pytest.approx(32 * (670 + 200) / 670)


def test_where_somebody_always_waits_intervals_end_all_the_same() -> None:
    observer = WorkerObserver()
    for request_id in ("a", "w"):
        observer.started(request_id, 0.0, 100)
    observer.first_token("a", 10.0)
    found = decode(observer, ["a"], 10.0, 5 * LONGEST_STEPS)
    assert [interval.steps for interval in found] == [LONGEST_STEPS] * 4


def test_without_reports_each_request_is_an_interval_and_ages_are_context() -> None:
    observer = WorkerObserver()
    for request_id in ("a", "b", "c", "d"):
        observer.started(request_id, 0.0, 1000)
    for request_id in ("a", "b", "c", "d"):
        observer.first_token(request_id, 100.0)
    intervals = [observer.ended(name, 100.0 + 100 * STEP_MS, output_tokens=101) for name in ("a", "b", "c", "d")]
    first, *others = intervals
    assert first is not None
    assert first.steps == 100
    assert first.sequence_steps == pytest.approx(400)
    assert first.context_token_steps / 100 == pytest.approx(4 * (1001 + 50))
    # It told all of the time; those after it tell the same again.
    assert first.weight == 1
    assert [other.weight for other in others if other is not None] == pytest.approx([0.5] * 3)


def test_a_request_alone_at_an_idle_worker_tells_prefill_and_the_way_there() -> None:
    observer = WorkerObserver(budget_tokens=2048)
    observer.started("a", 1000.0, 8192)
    interval = observer.first_token("a", 1500.0)
    assert interval == Interval(500.0, 4.0, prefill_tokens=8192.0, prefill_squares=8192.0**2, starts=1.0, end_ms=1500.0)
    # With another one beside it nobody knows whose time it was.
    observer.ended("a", 1600.0)
    observer.started("b", 2000.0, 100)
    observer.started("c", 2001.0, 100)
    assert observer.first_token("b", 2100.0) is None
    # All of it was cached: there is nothing to learn.
    observer.ended("b", 2100.0)
    observer.ended("c", 2100.0)
    observer.started("d", 3000.0, 100, cached_tokens=100)
    assert observer.first_token("d", 3010.0) is None


def test_a_prefill_worker_tells_one_prompt_after_the_other() -> None:
    observer = WorkerObserver(budget_tokens=1000)
    found = []
    for number in range(5):
        observer.started(f"r{number}", 0.0, 1000 * (number + 1))
    at_ms = 0.0
    for number in range(5):
        at_ms += 100.0 * (number + 1)
        found.append(observer.first_token(f"r{number}", at_ms))
        found.append(observer.ended(f"r{number}", at_ms))
    intervals = [interval for interval in found if interval is not None]
    assert [interval.prefill_tokens for interval in intervals] == [2000, 3000, 4000, 5000]
    assert [interval.elapsed_ms for interval in intervals] == pytest.approx([200, 300, 400, 500])
    assert [interval.steps for interval in intervals] == [2, 3, 4, 5]
    assert all(interval.starts == 0 and interval.sequence_steps == 0 for interval in intervals)


def test_prompts_of_one_step_are_one_interval() -> None:
    observer = WorkerObserver(budget_tokens=8192)
    for number in range(4):
        observer.started(f"r{number}", 0.0, 500)
    found = []
    for number, at_ms in enumerate((50.0, 90.0, 90.2, 90.4)):
        found += [observer.first_token(f"r{number}", at_ms), observer.ended(f"r{number}", at_ms)]
    (interval,) = [one for one in found if one is not None]
    assert (interval.prefill_tokens, interval.elapsed_ms, interval.steps) == (1500, 40, 1)


def test_a_request_that_fails_while_it_waits_spoils_what_is_open() -> None:
    observer = WorkerObserver()
    observer.started("a", 0.0, 100)
    observer.first_token("a", 10.0)
    decode(observer, ["a"], 10.0, 16)
    observer.started("b", 400.0, 50_000)
    assert observer.ended("b", 900.0) is None
    assert observer.tokens("a", 16, 910.0) is None
    interval = observer.tokens("a", 16, 910.0 + 16 * STEP_MS)
    assert interval is not None
    assert interval.elapsed_ms == pytest.approx(16 * STEP_MS)


def test_the_load_is_what_is_in_flight() -> None:
    observer = WorkerObserver()
    observer.started("a", 0.0, 1000, sequences=2)
    observer.started("b", 0.0, 500, cached_tokens=100)
    assert observer.load(5.0) == ObservedLoad(0, 0.0, 2, 1400)
    observer.first_token("a", 10.0)
    assert observer.load(10.0) == ObservedLoad(2, 2002.0, 1, 400)
    # Nobody reported, but ten steps have passed.
    assert observer.load(210.0, step_ms=20.0).context_tokens == pytest.approx(2002 + 20)
    observer.ended("a", 300.0)
    observer.ended("b", 300.0)
    assert observer.load(300.0, step_ms=20.0) == ObservedLoad(0, 0.0, 0, 0)


def test_a_request_that_is_not_streamed_is_load_and_tells_nothing_itself() -> None:
    observer = WorkerObserver()
    observer.started("u", 0.0, 2000, cached_tokens=500, streamed=False)
    observer.started("a", 0.0, 1000)
    assert observer.load(0.0) == ObservedLoad(1, 2001.0, 1, 1000)
    with pytest.raises(LedgerError, match="u does not generate here, as far as one sees"):
        observer.tokens("u", 1, 1.0)
    with pytest.raises(LedgerError, match="u does not wait"):
        observer.first_token("u", 1.0)
    # Whose time it was nobody knows: the other one computed, too.
    assert observer.first_token("a", 100.0) is None
    first, second, third = decode(observer, ["a"], 100.0, 64)
    assert second.sequence_steps == pytest.approx(32)
    assert first.context_token_steps / 16 == pytest.approx(3000 + 2 * 24 + 5, rel=0.005)
    assert observer.ended("u", 100.0 + 64 * STEP_MS, output_tokens=70) is None
    assert observer.load(2000.0).sequences == 1
    assert third.prefill_tokens == 0


def test_time_that_runs_backwards_stands_still() -> None:
    observer = WorkerObserver()
    observer.started("a", 1000.0, 100)
    assert observer.first_token("a", 900.0) is None
    decode(observer, ["a"], 1000.0, 16)
    assert observer.tokens("a", 64, 500.0) is None
    found = observer.tokens("a", 16, 1000.0 + 32 * STEP_MS)
    assert found is not None
    assert found.elapsed_ms == pytest.approx(16 * STEP_MS)


def test_an_epoch_in_milliseconds_loses_nothing() -> None:
    def context(origin_ms: float) -> float:
        observer = WorkerObserver()
        observer.started("a", origin_ms, 1000)
        observer.first_token("a", origin_ms + 50)
        found = observer.ended("a", origin_ms + 50 + 200 * STEP_MS, output_tokens=201)
        assert found is not None
        return found.context_token_steps

    assert context(1.8e12) == pytest.approx(context(0.0), rel=1e-6)


def test_what_it_cannot_follow_it_says() -> None:
    observer = WorkerObserver()
    observer.started("a", 0.0, 100)
    with pytest.raises(LedgerError, match="a is at the worker already"):
        observer.started("a", 0.0, 100)
    with pytest.raises(LedgerError, match="a does not generate here"):
        observer.tokens("a", 1, 0.0)
    observer.first_token("a", 1.0)
    with pytest.raises(LedgerError, match="a does not wait"):
        observer.first_token("a", 1.0)
    with pytest.raises(LedgerError, match="b is not at the worker"):
        observer.ended("b", 1.0)
    observer.forget()
    assert observer.load(2.0) == ObservedLoad(0, 0.0, 0, 0)
    observer.started("a", 2.0, 100)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("start", "first", "tokens", "end")),
        st.integers(0, 5),
        st.floats(-5.0, 500.0),
        st.integers(1, 40),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_whatever_happens_sums_make_sense_and_idle_is_zero(events: list[tuple[str, int, float, int]]) -> None:
    observer = WorkerObserver()
    state: dict[str, str] = {}
    now_ms, prefill = 1e6, 0
    for kind, number, later_ms, count in events:
        now_ms += later_ms
        name, found = f"r{number}", None
        if kind == "start" and name not in state:
            observer.started(name, now_ms, 10 * count, cached_tokens=count)
            prefill += 9 * count
            state[name] = "waiting"
        elif kind == "first" and state.get(name) == "waiting":
            found = observer.first_token(name, now_ms)
            state[name] = "decoding"
        elif kind == "tokens" and state.get(name) == "decoding":
            found = observer.tokens(name, count, now_ms)
        elif kind == "end" and name in state:
            found = observer.ended(name, now_ms, output_tokens=count if count % 2 else None)
            del state[name]
        if found is not None:
            assert found.steps >= min(1, SHORTEST_STEPS)
            assert all(math.isfinite(value) for value in found.features)
            assert found.prefill_tokens <= prefill
            assert found.sequence_steps <= 6 * found.steps + 1e-6
    load = observer.load(now_ms)
    assert load.waiting == sum(1 for value in state.values() if value == "waiting")
    assert load.sequences == len(state) - load.waiting
    for name in list(state):
        observer.ended(name, now_ms)
    assert observer.load(now_ms) == ObservedLoad(0, 0.0, 0, 0)
