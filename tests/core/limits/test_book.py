"""The book: bounded, and replicas come to the same sums whatever is lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.limits.book import OVERFLOW, Book
from pointsman.core.limits.limits import NO_LIMITS, Kind, Limits

SMALL = Limits(600, 60_000, 100)


def book(limits: Limits = SMALL, most: int = 100) -> Book:
    return Book(lambda subject: limits if subject.startswith("t:") else NO_LIMITS, most)


def asks(of: Book, subject: str, tokens: float = 10, now_ms: float = 0.0) -> bool:
    account = of.account(subject, now_ms)
    assert account is not None
    if of.refusal((account,), tokens, now_ms) is not None:
        return False
    of.begin((account,), tokens, now_ms)
    return True


def test_subjects_without_limits_have_no_account() -> None:
    assert book().account("k:1", 0.0) is None
    assert len(book()) == 0


def test_one_that_is_as_good_as_new_makes_room() -> None:
    of = book(most=3)
    for number in range(50):
        assert asks(of, f"t:{number}", now_ms=number * 1000.0)
        account = of.account(f"t:{number}", number * 1000.0)
        assert account is not None
        of.end((account,), 10, 10, number * 1000.0)
    assert len(of) <= 3 + 1


def test_inventing_names_gains_nothing() -> None:
    of = book(Limits(10), most=5)
    passed = sum(asks(of, f"t:{number}") for number in range(1000))
    assert passed == 5 + 10  # one each of those that found room, and what the others share
    assert len(of) == 6
    assert of.get(OVERFLOW) is not None
    refused = of.account("t:new", 0.0)
    assert refused is not None
    assert refused.subject == OVERFLOW


def test_the_account_with_the_longest_wait_is_named() -> None:
    of = Book(lambda subject: Limits(60) if subject == "t:a" else Limits(6))
    accounts = [account for name in ("t:a", "k:b") if (account := of.account(name, 0.0)) is not None]
    for _ in range(6):
        of.begin(accounts, 0, 0.0)
    for _ in range(54):
        of.begin(accounts[:1], 0, 0.0)
    refusal = of.refusal(accounts, 0, 0.0)
    assert refusal is not None
    assert (refusal.subject, refusal.kind, refusal.wait_ms) == ("k:b", Kind.REQUESTS, 10_000)


def test_a_newcomer_does_not_begin_with_full_buckets() -> None:
    old, new = book(), book()
    for _ in range(500):
        assert asks(old, "t:a")
        account = old.account("t:a", 0.0)
        assert account is not None
        old.end((account,), 10, 100, 0.0)
    new.heard("old", old.whole(0.0), 0.0)
    account = new.account("t:a", 0.0)
    assert account is not None
    assert account.levels(0.0) == (100, 10_000)


def test_what_a_dead_replica_held_is_free_and_what_it_delivered_is_not() -> None:
    one, other = book(Limits(None, 60_000, 2)), book(Limits(None, 60_000, 2))
    other.heard("one", [], 0.0)
    asks(one, "t:a", 1000)
    other.heard("one", one.changed(0.0), 0.0)
    asks(one, "t:a", 2000)
    other.heard("one", one.changed(0.0), 0.0)
    assert not asks(other, "t:a", 1000)
    account = other.account("t:a", 0.0)
    assert account is not None
    assert account.running == 2
    assert account.levels(0.0)[1] == 57_000
    other.gone("one", 0.0)
    assert account.running == 0
    assert account.levels(0.0)[1] == 60_000
    mine = one.account("t:a", 0.0)
    assert mine is not None
    one.end((mine,), 2000, 500, 0.0)
    other.heard("one", one.changed(0.0), 0.0)
    assert account.levels(0.0)[1] == 60_000 - 1000 - 500
    assert account.running == 1


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["begin", "end", "tell", "lose"]),
            st.integers(1, 200),
        ),
        max_size=80,
    )
)
def test_whatever_is_lost_or_late_replicas_agree_after_one_word_of_each(steps) -> None:
    """No time passes, so nothing is refilled: levels are then equal to the token, and at rest nothing runs anywhere."""
    limits = Limits(1_000_000, 1_000_000, 1000)
    books = [Book(lambda subject: limits) for _ in range(3)]
    accounts = [of.account("t:a", 0.0) for of in books]
    running: list[list[int]] = [[], [], []]

    def tell(who: int, *, whole: bool = False) -> None:
        rows = books[who].whole(0.0) if whole else books[who].changed(0.0)
        for to in range(3):
            if to != who:
                books[to].heard(str(who), rows, 0.0)

    for who in range(3):
        tell(who)
        for account in accounts:
            assert account is not None
            if account is not accounts[who]:
                account.heard(str(who), type(account.own)(), (None, None), 0.0)
    for who, what, tokens in steps:
        account = accounts[who]
        assert account is not None
        if what == "begin":
            books[who].begin((account,), tokens, 0.0)
            running[who].append(tokens)
        elif what == "end" and running[who]:
            books[who].end((account,), running[who].pop(), tokens, 0.0)
        elif what == "tell":
            tell(who)
        elif what == "lose":
            books[who].changed(0.0)
    for who in range(3):
        tell(who, whole=True)
    assert len({account.running for account in accounts if account is not None}) == 1
    levels = [account.levels(0.0) for account in accounts if account is not None]
    assert levels[1] == pytest.approx(levels[0])
    assert levels[2] == pytest.approx(levels[0])
    for who in range(3):
        account = accounts[who]
        assert account is not None
        for reserved in running[who]:
            books[who].end((account,), reserved, 0, 0.0)
        tell(who, whole=True)
    assert {account.running for account in accounts if account is not None} == {0}


def test_what_a_dead_replica_delivered_of_what_ran_is_charged_once() -> None:
    one, other = book(Limits(None, 60_000)), book(Limits(None, 60_000))
    other.heard("one", [], 0.0)
    assert asks(one, "t:a", 1000)
    mine, theirs = one.account("t:a", 0.0), other.account("t:a", 0.0)
    assert mine is not None
    assert theirs is not None
    one.deliver((mine,), 3000)
    assert mine.levels(0.0)[1] == 59_000, "its own bucket is settled at the end"
    other.heard("one", one.again(0.0), 0.0)
    assert theirs.levels(0.0)[1] == 59_000
    for _ in range(2):
        other.gone("one", 0.0)
        assert (theirs.running, theirs.levels(0.0)[1]) == (0, 57_000)
    one.deliver((mine,), -3000)
    one.end((mine,), 1000, 3500, 0.0)
    other.heard("one", one.changed(0.0), 0.0)
    assert theirs.levels(0.0)[1] == 56_500, "it was not dead: what it says counts"
    assert mine.own.delivered == 0


def test_an_end_that_nobody_heard_of_is_told_again() -> None:
    """With a limit on what runs alone, an account is as good as new when its last request ends."""
    one, other = book(Limits(None, None, 1)), book(Limits(None, None, 1))
    other.heard("one", [], 0.0)
    assert asks(one, "t:a")
    other.heard("one", one.changed(0.0), 0.0)
    assert not asks(other, "t:a")
    account = one.account("t:a", 0.0)
    assert account is not None
    one.end((account,), 10, 10, 0.0)
    one.changed(0.0)  # and this is lost
    other.heard("one", one.whole(0.0), 0.0)
    assert asks(other, "t:a")
    assert [len(one.again(0.0)) for _ in range(12)] == [1] * 10 + [0] * 2


def test_a_replica_that_forgot_an_account_gives_nothing_back() -> None:
    limits = Limits(100, 10_000)
    one, other = book(limits), book(limits)
    other.heard("one", [], 0.0)
    for _ in range(90):
        assert asks(one, "t:a", 50)
    account = one.account("t:a", 0.0)
    assert account is not None
    for _ in range(90):
        one.end((account,), 50, 50, 0.0)
    other.heard("one", one.changed(0.0), 0.0)
    anew = book(limits)
    anew.heard("other", other.whole(0.0), 0.0)
    assert asks(anew, "t:a", 50)
    mine = other.account("t:a", 0.0)
    assert mine is not None
    before = mine.levels(0.0)
    assert before == (10, 5500)
    other.heard("one", anew.changed(0.0), 0.0)
    assert mine.levels(0.0) == (9, 5450)
    assert mine.running == 1


def test_reload_changes_limits_in_place() -> None:
    limits = {"t:a": Limits(60, None, 1), "t:b": Limits(60)}
    of = Book(lambda subject: limits.get(subject, NO_LIMITS))
    assert asks(of, "t:a")
    assert asks(of, "t:b")
    a, b = of.get("t:a"), of.get("t:b")
    assert a is not None
    assert b is not None
    of.end((b,), 10, 10, 0.0)
    limits.clear()
    limits["t:a"] = Limits(120, None, 5)
    of.reload(0.0)
    assert of.get("t:b") is None
    assert a.limits.concurrency == 5
    assert a.levels(0.0)[0] == 119


def test_an_account_that_was_forgotten_here_does_not_pay_for_all_that_ever_was() -> None:
    one, other = book(Limits(60)), book(Limits(60))
    other.heard("one", [], 0.0)
    for minute in range(10):
        for _ in range(50):
            now = minute * 60_000.0
            assert asks(one, "t:a", now_ms=now)
            account = one.account("t:a", now)
            assert account is not None
            one.end((account,), 10, 10, now)
    other.heard("one", one.changed(540_000.0), 540_000.0)
    mine = other.account("t:a", 540_000.0)
    assert mine is not None
    assert mine.levels(540_000.0)[0] == 10
