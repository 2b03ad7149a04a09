"""The cache of pieces: what it spares, and its bound."""

from __future__ import annotations

from pointsman.edge.prompts.prefix_cache import PrefixCache


class Encoder:
    """Stands for a tokenizer; keeps what it was asked for."""

    def __init__(self, cache: PrefixCache):
        self.cache = cache
        self.asked: list[str] = []

    def encode(self, piece: str) -> bytes:
        self.asked.append(piece)
        return piece.upper().encode()

    def __call__(self, *pieces: str) -> bytes:
        return self.cache.complete(pieces, self.cache.look_up(pieces), self.encode)


def test_a_growing_conversation_only_pays_for_what_is_new() -> None:
    encoder = Encoder(PrefixCache(10_000))

    assert encoder("a", "b") == b"AB"
    assert encoder("a", "b", "c") == b"ABC"

    assert encoder.asked == ["a", "b", "c"]
    assert (encoder.cache.counts.hit_characters, encoder.cache.counts.missed_characters) == (2, 3)


def test_a_piece_that_is_there_twice_is_encoded_once() -> None:
    encoder = Encoder(PrefixCache(10_000))

    assert encoder("a", "b", "a") == b"ABA"

    assert encoder.asked == ["a", "b"]
    assert len(encoder.cache) == 2


def test_the_least_recently_used_piece_goes_first() -> None:
    encoder = Encoder(PrefixCache(600))
    for piece in ("a", "b", "a", "c"):
        encoder(piece)

    encoder("a")
    assert encoder.asked == ["a", "b", "c"]
    encoder("b")

    assert encoder.asked == ["a", "b", "c", "b"]
    assert encoder.cache.counts.evicted_pieces == 2


def test_memory_is_bounded_and_accounted_for() -> None:
    encoder = Encoder(PrefixCache(5_000))

    for number in range(500):
        encoder(f"{number}" * 20)
        assert encoder.cache.size_bytes <= 5_000

    assert 5 < len(encoder.cache) < 30
    encoder("ö" * 5_000)
    assert encoder.cache.size_bytes <= 5_000


def test_an_entry_counts_once_when_two_threads_made_it() -> None:
    cache = PrefixCache(10_000)
    found = cache.look_up(["a"])
    cache.complete(["a"], found, lambda piece: b"A")
    size = cache.size_bytes

    cache.complete(["a"], found, lambda piece: b"A")

    assert cache.size_bytes == size
