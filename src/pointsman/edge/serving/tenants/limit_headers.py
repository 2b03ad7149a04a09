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
        if account.requests is not None:
            requests = account.requests if requests is None else _lower(requests, account.requests, now_ms)
        if account.tokens is not None:
            tokens = account.tokens if tokens is None else _lower(tokens, account.tokens, now_ms)
    if requests is None:
        return () if tokens is None else _fields(_TOKENS, tokens, now_ms)
    found = _fields(_REQUESTS, requests, now_ms)
    return found if tokens is None else found + _fields(_TOKENS, tokens, now_ms)


def _lower(one: Bucket, other: Bucket, now_ms: float) -> Bucket:
    return other if other.level(now_ms) < one.level(now_ms) else one


def _fields(names: tuple[bytes, ...], bucket: Bucket, now_ms: float) -> LimitHeaders:
    level = bucket.level(now_ms)
    reset_ms = (bucket.capacity - level) / bucket.per_ms
    return (
        (names[0], b"%d" % bucket.per_minute),
        (names[1], b"%d" % level if level > 0 else b"0"),
        (names[2], _duration(reset_ms)),
    )


def _duration(ms: float) -> bytes:
    """For example `20ms`, `1.500s` or `6m0s`; rounded up."""
    whole_ms = -int(-ms // 1)
    if whole_ms < 1000:
        return b"%dms" % whole_ms
    seconds, rest_ms = divmod(whole_ms, 1000)
    fraction = b".%03d" % rest_ms if rest_ms else b""
    if seconds < 60:
        return b"%d%bs" % (seconds, fraction)
    return b"%dm%d%bs" % (seconds // 60, seconds % 60, fraction)
