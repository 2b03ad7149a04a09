"""The latest word on each engine: in which order words come does not matter."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.cluster.discovery.registrations import (
    FORGET_AFTER_MS,
    DrainOrder,
    Registration,
    Registrations,
    WorkersMessage,
)

RECORD = '{"url": "http://a"}'


def silent(name: str) -> bool:
    return False


def names(book: Registrations) -> list[str]:
    return [one.name for one in book.living()]


def test_the_later_word_counts() -> None:
    book = Registrations()
    assert book.merge(Registration("a", 2.0, "x", RECORD), 0.0)
    assert not book.merge(Registration("a", 1.0, "y"), 0.0)
    assert names(book) == ["a"]
    assert book.merge(Registration("a", 3.0, "y"), 0.0)
    assert not book.merge(Registration("a", 2.5, "x", RECORD), 0.0)
    assert names(book) == []


def test_stamps_grow_even_if_clocks_differ() -> None:
    book = Registrations()
    book.merge(Registration("a", 900.0, "ahead", RECORD), 0.0)
    stamp = book.next_stamp_ms("a", 100.0)
    assert stamp > 900.0
    assert book.merge(Registration("a", stamp, "behind"), 0.0)
    assert book.next_stamp_ms("b", 100.0) == 100.0


def test_what_is_not_said_again_in_time() -> None:
    book = Registrations()
    book.merge(Registration("a", 1.0, "x", RECORD, ttl_s=10), 1_000.0)
    book.merge(Registration("b", 1.0, "x", RECORD), 1_000.0)
    assert book.expired(10_999.0, silent) == []
    book.merge(Registration("a", 2.0, "x", RECORD, ttl_s=10), 10_999.0)
    assert book.expired(20_998.0, silent) == []
    assert book.expired(20_999.0, lambda name: True) == []
    assert book.expired(30_998.0, silent) == []
    assert book.expired(30_999.0, silent) == ["a"]
    assert book.expired(99_999.0, silent) == []
    assert names(book) == ["b"]
    assert book.merge(Registration("a", 3.0, "x", RECORD, ttl_s=10), 99_999.0)


def test_old_deletions_and_drains_are_forgotten() -> None:
    book = Registrations()
    book.merge(Registration("gone", 1.0, "x"), 0.0)
    book.merge(Registration("here", 1.0, "x", RECORD), 0.0)
    book.merge_drain(DrainOrder("gone", 1.0, "x", "by hand"))
    book.merge_drain(DrainOrder("here", 1.0, "x", "by hand"))
    book.forget(FORGET_AFTER_MS - 1, FORGET_AFTER_MS, ["here"])
    assert len(book.everything()[0]) == 2
    book.forget(FORGET_AFTER_MS, FORGET_AFTER_MS + 1, ["here"])
    registrations, drains = book.everything()
    assert [one.name for one in registrations] == ["here"]
    assert [one.name for one in drains] == ["here"]


WORDS = st.lists(
    st.builds(
        Registration,
        st.sampled_from("ab"),
        st.integers(0, 5).map(float),
        st.sampled_from("xyz"),
        st.sampled_from([None, RECORD]),
    ),
    max_size=12,
    unique_by=lambda one: (one.name, one.stamp_ms, one.replica),
)


@given(WORDS, st.randoms(use_true_random=False))
def test_any_order_ends_alike(words: list[Registration], rng: object) -> None:
    one, other = Registrations(), Registrations()
    for word in words:
        one.merge(word, 0.0)
    shuffled = words * 2
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    for word in shuffled:
        other.merge(word, 0.0)
    assert sorted(one.everything()[0], key=lambda w: w.name) == sorted(other.everything()[0], key=lambda w: w.name)


def test_what_goes_over_the_bus() -> None:
    message = WorkersMessage(
        [Registration("a", 1.0, "x", RECORD, 5.0)], [DrainOrder("a", 1.0, "x", "why", 3.0)], number=7
    )
    assert msgspec.json.decode(msgspec.json.encode(message), type=WorkersMessage) == message
