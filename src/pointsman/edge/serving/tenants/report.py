"""What `pointsman status` shows of keys and limits."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from pointsman.core.limits.account import Account
from pointsman.core.limits.bucket import Bucket
from pointsman.edge.serving.tenants.principal import shown

MOST_SHOWN = 50


class UseReport(msgspec.Struct):
    """One limit of so much a minute."""

    limit: float
    left: float
    """Below 0: a debt, which is paid before anything passes."""
    full_in_s: float
    """Until all that may be saved up is there again."""


class AccountReport(msgspec.Struct):
    """Limits in force of one party, and what it used of them, all replicas together."""

    subject: str
    running: int
    concurrency: int | None
    requests: UseReport | None
    tokens: UseReport | None
    refused_total: int
    """By this front end."""


class KeysReport(msgspec.Struct):
    """The file of keys."""

    file: str
    keys: int
    expired: int
    read_at_s: float
    """Seconds since 1970."""
    fault: str | None
    """What is wrong with the file as it is now; the keys read before hold."""


class TenancyReport(msgspec.Struct):
    """Keys and limits; `accounts` are those that have least left, `more` is how many there are beside them."""

    keys: KeysReport | None
    accounts: list[AccountReport]
    more: int


def account_reports(accounts: Iterable[Account], now_ms: float) -> tuple[list[AccountReport], int]:
    """Those of the parties with least left, and how many more there are."""
    every = list(accounts)
    worst = heapq.nsmallest(MOST_SHOWN, every, key=lambda account: (_left(account, now_ms), account.subject))
    return [_account(account, now_ms) for account in worst], len(every) - len(worst)


def _left(account: Account, now_ms: float) -> float:
    """The least share that is left of one of its limits."""
    shares = [
        bucket.level(now_ms) / bucket.capacity for bucket in (account.requests, account.tokens) if bucket is not None
    ]
    if account.limits.concurrency is not None:
        shares.append(1.0 - account.running / account.limits.concurrency)
    return min(shares, default=1.0)


def _account(account: Account, now_ms: float) -> AccountReport:
    return AccountReport(
        subject=shown(account.subject),
        running=account.running,
        concurrency=account.limits.concurrency,
        requests=_use(account.requests, now_ms),
        tokens=_use(account.tokens, now_ms),
        refused_total=account.refused,
    )


def _use(bucket: Bucket | None, now_ms: float) -> UseReport | None:
    if bucket is None:
        return None
    level = bucket.level(now_ms)
    return UseReport(bucket.per_minute, round(level, 3), round((bucket.capacity - level) / bucket.per_ms / 1000, 3))
