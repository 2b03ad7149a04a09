"""Account: what one party used of its limits, here and at other replicas."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.limits.bucket import Bucket
from pointsman.core.limits.limits import Kind, Limits, Refusal

MOST_REPLICAS = 64
"""Whose last word is kept, those that are gone included."""

Levels = tuple[float | None, float | None]
"""What is left of requests and tokens; None: no such limit."""


@dataclass(slots=True)
class Spent:
    """What one replica has let through: all that others need to count it."""

    requests: int = 0
    """Ever."""
    tokens: float = 0.0
    """Ever, of requests that ended."""
    reserved: float = 0.0
    """Tokens set aside for those that run."""
    running: int = 0
    delivered: float = 0.0
    """Tokens that those that run have come to already: what they cost at least, should it end now."""

    @property
    def whole(self) -> float:
        """Tokens, those set aside included."""
        return self.tokens + self.reserved


class Account:
    """Of one party. A request reserves an estimate, and settles what it came to when it ends."""

    __slots__ = ("_heard", "limits", "own", "refused", "requests", "subject", "tokens")

    def __init__(self, subject: str, limits: Limits, now_ms: float) -> None:
        self.subject = subject
        self.limits = limits
        self.requests = _bucket(limits.requests_per_minute, limits, now_ms)
        self.tokens = _bucket(limits.tokens_per_minute, limits, now_ms)
        self.own = Spent()
        self.refused = 0
        self._heard: dict[str, Spent] = {}

    # ---- requests of this replica

    def refusal(self, tokens: float, now_ms: float) -> Refusal | None:
        """Why a request that may come to so many tokens can't begin now; None: it can. Takes nothing."""
        limits = self.limits
        if limits.concurrency is not None and self.running >= limits.concurrency:
            return Refusal(self.subject, Kind.CONCURRENCY, limits.concurrency, None)
        requests, counted = self.requests, self.tokens
        if (requests is None or requests.has(1.0, now_ms)) and (counted is None or counted.has(tokens, now_ms)):
            return None
        for_request_ms = 0.0 if requests is None else requests.wait_ms(1.0, now_ms)
        for_tokens_ms = 0.0 if counted is None else counted.wait_ms(tokens, now_ms)
        if requests is not None and for_request_ms > 0.0 and for_request_ms >= for_tokens_ms:
            return Refusal(self.subject, Kind.REQUESTS, requests.per_minute, for_request_ms)
        if counted is not None and for_tokens_ms > 0.0:
            return Refusal(self.subject, Kind.TOKENS, counted.per_minute, for_tokens_ms)
        return None

    def begin(self, tokens: float, now_ms: float) -> None:
        """A request begins and sets so many tokens aside."""
        own = self.own
        own.requests += 1
        own.reserved += tokens
        own.running += 1
        if self.requests is not None:
            self.requests.take(1.0, now_ms)
        if self.tokens is not None:
            self.tokens.take(tokens, now_ms)

    def deliver(self, tokens: float) -> None:
        """One that runs came to so many more tokens; less than 0: they are settled."""
        self.own.delivered = max(0.0, self.own.delivered + tokens)

    def end(self, reserved: float, used: float, now_ms: float, *, counts: bool = True) -> None:
        """It ended and came to `used` tokens; not `counts`: as if it had never been asked."""
        own = self.own
        own.reserved = max(0.0, own.reserved - reserved)
        own.running -= 1
        own.tokens += used
        if self.tokens is not None:
            self.tokens.take(used - reserved, now_ms)
        if not counts:
            own.requests -= 1
            self._take(-1.0, 0.0, now_ms)

    def _take(self, requests: float, tokens: float, now_ms: float) -> None:
        if self.requests is not None and requests:
            self.requests.take(requests, now_ms)
        if self.tokens is not None and tokens:
            self.tokens.take(tokens, now_ms)

    # ---- those of other replicas

    def heard(self, replica: str, spent: Spent, levels: Levels, now_ms: float, *, is_new: bool = False) -> None:
        """What another replica has let through so far; each word holds all, so that lost ones do no harm.

        `levels`: what it thinks is left of requests and tokens. Of a replica that `is_new`, whose past nobody here
        knows, only that counts.
        """
        before = self._heard.get(replica)
        if before is not None and spent.tokens >= before.tokens:  # else it forgot the account, and counts anew
            self._take(spent.requests - before.requests, spent.whole - before.whole, now_ms)
        elif is_new:
            self._lower(levels, now_ms)
        else:
            self._take_unheard(spent, levels, now_ms)
        if before is None:
            self._forget_one()
        self._heard[replica] = spent

    def _take_unheard(self, spent: Spent, levels: Levels, now_ms: float) -> None:
        """All that it let through; where that is long ago, what still shows of it."""
        for bucket, level, amount in zip(
            (self.requests, self.tokens), levels, (spent.requests, spent.whole), strict=True
        ):
            if bucket is not None and level is not None:
                bucket.take(min(amount, max(0.0, bucket.capacity - level)), now_ms)

    def gone(self, replica: str, now_ms: float) -> None:
        """A replica is gone: its requests run no more, and nobody knows what they came to beyond what it said."""
        spent = self._heard.get(replica)
        if spent is not None and (spent.running or spent.reserved):
            self._take(0.0, spent.delivered - spent.reserved, now_ms)
            self._heard[replica] = Spent(spent.requests, spent.tokens, spent.delivered, 0, spent.delivered)

    def _lower(self, levels: Levels, now_ms: float) -> None:
        for bucket, level in zip((self.requests, self.tokens), levels, strict=True):
            if bucket is not None and level is not None:
                bucket.lower_to(level, now_ms)

    def _forget_one(self) -> None:
        """One that has nothing running, the oldest first."""
        if len(self._heard) >= MOST_REPLICAS:
            idle = next((name for name, spent in self._heard.items() if not spent.running), next(iter(self._heard)))
            del self._heard[idle]

    # ---- as it stands

    @property
    def running(self) -> int:
        """Requests at the same time, those of other replicas included."""
        own = self.own.running
        return own + sum(spent.running for spent in self._heard.values()) if self._heard else own

    def levels(self, now_ms: float) -> Levels:
        """What is left of requests and tokens; below 0: a debt."""
        requests, tokens = self.requests, self.tokens
        return (
            None if requests is None else requests.level(now_ms),
            None if tokens is None else tokens.level(now_ms),
        )

    def is_idle(self, now_ms: float) -> bool:
        """A new account would be the same."""
        return self.running == 0 and all(
            bucket is None or bucket.is_full(now_ms) for bucket in (self.requests, self.tokens)
        )

    def change(self, limits: Limits, now_ms: float) -> None:
        """Other limits from now on; what was used stays used."""
        if limits != self.limits:
            self.requests = _changed(self.requests, limits.requests_per_minute, limits, now_ms)
            self.tokens = _changed(self.tokens, limits.tokens_per_minute, limits, now_ms)
            self.limits = limits


def _bucket(per_minute: float | None, limits: Limits, now_ms: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, limits.saved_s, now_ms)


def _changed(old: Bucket | None, per_minute: float | None, limits: Limits, now_ms: float) -> Bucket | None:
    new = _bucket(per_minute, limits, now_ms)
    if new is not None and old is not None:
        new.take(old.capacity - old.level(now_ms), now_ms)
    return new
