"""`x-ratelimit-*`: what is left of a client's limits, as OpenAI names it."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.core.limits.account import Account
from pointsman.core.limits.bucket import Bucket
from pointsman.edge.wire.headers import RATE_LIMIT_HEADERS

LimitHeaders = tuple[tuple[bytes, bytes], ...]

_REQUESTS = RATE_LIMIT_HEADERS[:3]
_TOKENS = RATE_LIMIT_HEADERS[3:]


def limit_headers(accounts: Iterable[Account], now_ms: float) -> LimitHeaders:
    """Of the account that has least left of each; without a limit there is no header."""
    requests: Bucket | None = None
    tokens: Bucket | None = None
    for account in accounts:
        requests = _lower(requests, account.requests, now_ms)
        tokens = _lower(tokens, account.tokens, now_ms)
    return (
        *(() if requests is None else _fields(_REQUESTS, requests, now_ms)),
        *(() if tokens is None else _fields(_TOKENS, tokens, now_ms)),
    )


def _lower(one: Bucket | None, other: Bucket | None, now_ms: float) -> Bucket | None:
    if one is None or other is None:
        return one or other
    return other if other.level(now_ms) < one.level(now_ms) else one


def _fields(names: tuple[bytes, ...], bucket: Bucket, now_ms: float) -> LimitHeaders:
    level = bucket.level(now_ms)
    reset_ms = (bucket.capacity - level) / bucket.per_ms
    return (
        (names[0], b"%d" % bucket.per_minute),
        (names[1], b"%d" % max(0, int(level))),
        (names[2], _duration(reset_ms)),
    )


def _duration(ms: float) -> bytes:
    """For example `20ms`, `1.5s` or `6m0s`."""
    if ms < 1000:
        return b"%dms" % int(ms + 0.999)
    minutes, rest = divmod(ms / 1000, 60)
    return b"%dm%gs" % (minutes, round(rest, 3)) if minutes else b"%gs" % round(rest, 3)
