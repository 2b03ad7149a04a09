"""Chat requests of plain English words: a shared beginning, then a part of their own."""

from __future__ import annotations

import random

import msgspec

_WORDS = tuple(
    word
    for line in (
        "time year people way day man thing woman life child world school state family student group country problem",
        "hand part place case week company system program question work night point home water room mother area money",
        "story fact month lot right study book eye job word business issue side kind head house service friend father",
        "power hour game line end member law car city name team minute idea body back parent face level office door",
    )
    for word in line.split()
)


def words(count: int, rng: random.Random) -> str:
    """`count` random words."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def chat_bodies(
    *,
    model: str,
    max_tokens: int,
    count: int,
    groups: int,
    prefix_words: int,
    tail_words: int,
    seed: int,
    tail_seed: int | None = None,
    history_messages: int = 0,
) -> list[bytes]:
    """JSON bodies of streamed chat requests: `groups` different beginnings taken in turn, each tail its own.

    The beginning is the start of the one message, or so many messages before it. `tail_seed` gives other tails to the
    same beginnings: a run with tails that were sent before would find all of its prompts in a cache.
    """
    rng = random.Random(seed)
    beginnings = [words(prefix_words, rng) for _ in range(groups)]
    tails = rng if tail_seed is None else random.Random(f"{seed} {tail_seed}")
    return [
        msgspec.json.encode(
            {
                "model": model,
                "messages": _messages(beginnings[i % groups], words(tail_words, tails), history_messages),
                "max_tokens": max_tokens,
                "stream": True,
                "temperature": 0,
                "ignore_eos": True,
            }
        )
        for i in range(count)
    ]


def _messages(beginning: str, tail: str, history_messages: int) -> list[dict[str, str]]:
    """One message, or a history of user and assistant by turns that ends with an answer, and a new message."""
    if not history_messages:
        return [{"role": "user", "content": f"{beginning} {tail}"}]
    said = beginning.split()
    size = -(-len(said) // history_messages)
    history = [" ".join(said[start : start + size]) for start in range(0, len(said), size)]
    roles = ("assistant", "user")
    first = len(history) % 2
    return [
        *({"role": roles[(first + 1 + i) % 2], "content": text} for i, text in enumerate(history)),
        {"role": "user", "content": tail},
    ]


def http_post(port: int, path: str, body: bytes) -> bytes:
    """The request as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer none\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
