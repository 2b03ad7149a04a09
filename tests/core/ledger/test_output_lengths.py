"""Expected lengths: learned per kind, limited by the request's own limit, never below what is to come."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.ledger.output_lengths import OutputLengths


def learned(lengths, tenant=None, api="chat"):
    book = OutputLengths()
    for length in lengths:
        book.ended("m", tenant, api, length)
    return book


def test_before_any_answer_a_guess_below_the_limit() -> None:
    expected = OutputLengths().expected("m", None, "chat")
    assert expected.tokens() == pytest.approx(256, rel=0.02)
    assert 15 < expected.tokens(16) <= 16
    assert expected.tokens(0) == 0
    assert expected.answers_seen == 0


def test_a_constant_length_is_found() -> None:
    expected = learned([100] * 1000).expected("m", None, "chat")
    assert expected.tokens() == pytest.approx(100, rel=0.01)
    assert expected.tokens(50) == pytest.approx(50, rel=0.001)
    assert expected.remaining(60) == pytest.approx(40, rel=0.02)


def test_the_limit_acts_on_the_distribution_not_on_the_mean() -> None:
    """Nine of ten answers have 10 tokens, one has 1,000: below 100 the mean is 19, not min(109, 100)."""
    expected = learned(([10] * 9 + [1000]) * 100).expected("m", None, "chat")
    assert expected.tokens() == pytest.approx(109, rel=0.1)
    assert expected.tokens(100) == pytest.approx(19, rel=0.1)
    # One that has 20 already is one of the long ones.
    assert expected.remaining(20) > 500
    assert expected.remaining(20, 100) == pytest.approx(80, rel=0.05)


def test_who_outlives_all_that_was_seen_goes_on() -> None:
    expected = learned([100] * 1000).expected("m", None, "chat")
    assert expected.remaining(150) > 50
    assert expected.remaining(5000) > 500
    assert expected.remaining(3e6) > 1e6
    assert expected.remaining(150, 160) <= 10
    assert expected.remaining(160, 160) == 0


def test_kinds_differ_and_unknown_ones_borrow() -> None:
    book = OutputLengths()
    for _ in range(200):
        book.ended("m", "chatty", "chat", 800)
        book.ended("m", "terse", "chat", 8)
        book.ended("m", None, "completions", 50)
    assert book.expected("m", "chatty", "chat").tokens() == pytest.approx(800, rel=0.1)
    assert 8 <= book.expected("m", "terse", "chat").tokens() < 24
    new = book.expected("m", "new", "chat").tokens()
    assert 300 < new < 500
    assert book.expected("other", None, "chat").tokens() == pytest.approx(256, rel=0.02)


def test_answers_cut_off_by_their_limit_say_only_that_they_are_longer() -> None:
    chance = random.Random(1)
    book = OutputLengths()
    for _ in range(3000):
        length, limit = 1 + chance.expovariate(1 / 400), chance.choice([50, 200, 10**6])
        book.ended("m", None, "chat", min(length, limit), cut_off=length >= limit)
    expected = book.expected("m", None, "chat")
    assert expected.tokens() == pytest.approx(401, rel=0.15)
    assert expected.tokens(200) == pytest.approx(400 * (1 - math.exp(-0.5)), rel=0.05)


def test_older_answers_fade() -> None:
    book = learned([1000] * 2000)
    for _ in range(2000):
        book.ended("m", None, "chat", 10)
    assert book.expected("m", None, "chat").tokens() < 60


def test_an_answer_counts_soon_while_few_were_seen() -> None:
    book = OutputLengths()
    before = book.expected("m", None, "chat").tokens()
    for _ in range(3):
        book.ended("m", None, "chat", 2000)
    assert book.expected("m", None, "chat").tokens() > before + 100


def test_however_many_tenants_come_it_stays_small() -> None:
    book = OutputLengths()
    for tenant in range(5000):
        book.ended("m", f"t{tenant}", "chat", 30)
    assert len(book) <= 1024
    assert book.expected("m", "t0", "chat").tokens() == pytest.approx(30, rel=0.3)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 2**22), st.booleans()), max_size=30),
    limit=st.none() | st.integers(0, 10**7),
    generated=st.integers(0, 10**7),
)
def test_expectations_stay_within_limits(lengths, limit, generated) -> None:
    book = OutputLengths()
    for length, cut_off in lengths:
        book.ended("m", "t", "chat", length, cut_off=cut_off)
    expected = book.expected("m", "t", "chat")
    assert 0 <= expected.tokens(limit) < math.inf
    left = expected.remaining(generated, limit)
    assert 0 <= left < math.inf
    if limit is not None:
        assert expected.tokens(limit) <= limit + 1e-6
        assert left <= max(0, limit - generated)
    elif generated:
        assert left > 0


def test_it_learns_on_for_ever() -> None:
    book = learned([100] * 25_000)
    expected = book.expected("m", None, "chat")
    assert expected.tokens() == pytest.approx(100, rel=0.01)
    assert expected.answers_seen == pytest.approx(500, rel=0.01)
