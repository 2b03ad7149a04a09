"""Gate: who is let in, and how much of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.limits.account import Account
from pointsman.core.limits.book import OVERFLOW, Book
from pointsman.core.limits.limits import Refusal
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.route_keys import tenant_of
from pointsman.edge.serving.tenants.counts import KeyFault, TenantCounts
from pointsman.edge.serving.tenants.credentials import UnusableCredentialsError, presented_key
from pointsman.edge.serving.tenants.key_ring import KeyRing
from pointsman.edge.serving.tenants.limit_headers import limit_headers
from pointsman.edge.serving.tenants.principal import ANONYMOUS, Principal, model_subject
from pointsman.edge.serving.tenants.refusals import NotLetInError, beyond_limit, no_key
from pointsman.edge.serving.tenants.rules import Rules
from pointsman.edge.serving.tenants.usage import delivered_so_far, delivered_tokens
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_request import IncomingRequest

SAID_EVERY_MS = 10_000.0
LONG_BODY_BYTES = 16 * 1024
"""Checking and tokenizing a longer one costs more than looking at limits twice."""
_MOST_CACHED = 1000
_SEND_IT = "send it as `Authorization: Bearer KEY`"

_log = logging.getLogger("pointsman.serving")


@dataclass(eq=False, slots=True)
class Grant:
    """A request that was let in; given back when it ends."""

    principal: Principal
    accounts: tuple[Account, ...]
    reserved_tokens: float
    delivered_tokens: int = 0
    """What other front ends are told of it while it runs."""


class Gate:
    """Asks for keys where `ring` is given, and counts where `rules` have limits."""

    def __init__(
        self,
        ring: KeyRing | None,
        rules: Rules,
        book: Book,
        ledger: Ledger,
        counts: TenantCounts,
        clock: Clock,
        epoch_s: Callable[[], float] = time.time,
    ) -> None:
        self._ring = ring
        self._rules = rules
        self._book = book
        self._ledger = ledger
        self._counts = counts
        self._clock = clock
        self._epoch_s = epoch_s
        self._unsaid = 0
        self._say_ms = float("-inf")
        self._cached: dict[tuple[tuple[str, ...], str | None], tuple[Account, ...]] = {}
        self._generation = -1
        self.changed: Callable[[], None] | None = None
        """Called when an account changed."""
        self._shared: dict[Grant, Exchange] = {}
        """What runs and others are told of."""

    def change(self, ring: KeyRing | None, rules: Rules) -> None:
        """Other keys and limits from now on; requests that were let in go on."""
        self._ring, self._rules = ring, rules
        self._cached.clear()

    @property
    def asks_for_keys(self) -> bool:
        """Somebody without a key is not let in."""
        return self._ring is not None

    @property
    def active(self) -> bool:
        """There are keys or limits at all."""
        return self._ring is not None or self._rules.any

    # ---- who

    def identify(self, incoming: IncomingRequest) -> Principal:
        """Whose request it is. Raises NotLetInError (401)."""
        ring = self._ring
        if ring is None:
            return Principal.of_tenant(tenant_of(incoming))
        return self._holder(ring, incoming.headers, incoming.peer)

    def refusal_of(self, headers: Headers, peer: str) -> tuple[int, str] | None:
        """Status and message for who has no key, before a long body is taken from him."""
        try:
            if self._ring is not None:
                self._holder(self._ring, headers, peer)
        except NotLetInError as error:
            return error.status, error.message
        return None

    def _holder(self, ring: KeyRing, headers: Headers, peer: str) -> Principal:
        try:
            key = presented_key(headers)
        except UnusableCredentialsError as error:
            raise self._fault(KeyFault.MALFORMED, peer, f"the API key can't be read: {error}; {_SEND_IT}") from None
        if key is None:
            raise self._fault(KeyFault.MISSING, peer, f"an API key is needed; {_SEND_IT}, not in the URL")
        found = ring.find(key)
        if found is None:
            raise self._fault(KeyFault.UNKNOWN, peer, f"the API key is not valid; {_SEND_IT}")
        if found.expires_s is not None and found.expires_s <= self._epoch_s():
            key_id = found.principal.key_id
            raise self._fault(KeyFault.EXPIRED, peer, f"the API key is not valid; {_SEND_IT}", f" (key {key_id})")
        return found.principal

    def _fault(self, fault: KeyFault, peer: str, message: str, about: str = "") -> NotLetInError:
        self._counts.key_faults[fault] += 1
        self._unsaid += 1
        now_ms = self._clock()
        if now_ms >= self._say_ms:
            more = "" if self._unsaid == 1 else f"; {self._unsaid} such requests since the last such line"
            _log.warning("a request of %s was refused: API key %s%s%s", peer, fault, about, more)
            self._unsaid = 0
            self._say_ms = now_ms + SAID_EVERY_MS
        return no_key(message)

    # ---- how much

    def admit(self, incoming: IncomingRequest) -> Principal:
        """Whose request it is, if it may be worth to look into a long body.

        Raises NotLetInError: 401, or 429 where a limit is reached whatever is asked for.
        """
        principal = self.identify(incoming)
        if len(incoming.body) > LONG_BODY_BYTES and self._rules.any:
            now_ms = self._clock()
            accounts = self._accounts(principal, None, now_ms)
            refusal = self._book.refusal(accounts, 1.0, now_ms)
            if refusal is not None:
                raise self._refused(principal, accounts, refusal, now_ms)
        return principal

    def reserve(self, principal: Principal, exchange: Exchange) -> Grant:
        """Set aside what a request is thought to come to. Raises NotLetInError (429)."""
        counts = self._counts
        accounts: tuple[Account, ...] = ()
        tokens = 0.0
        if self._rules.any:
            request = exchange.request
            now_ms = self._clock()
            accounts = self._accounts(principal, request.model, now_ms)
            if accounts:
                if any(account.tokens is not None for account in accounts):
                    tokens = request.prompt_tokens + request.sequences * self._ledger.expected_output_tokens(request)
                refusal = self._book.refusal(accounts, tokens, now_ms)
                if refusal is not None:
                    raise self._refused(principal, accounts, refusal, now_ms)
                self._book.begin(accounts, tokens, now_ms)
                exchange.limit_headers = limit_headers(accounts, now_ms)
                self._told_others()
        counts.requests.add(principal.name)
        if principal.key_id is not None:
            counts.keys.add(principal.key_id)
        grant = Grant(principal, accounts, tokens)
        if tokens and self.changed is not None:
            self._shared[grant] = exchange
        return grant

    def look(self) -> None:
        """Now and then: note what those that run have come to, so that it is not lost with this front end."""
        for grant, exchange in self._shared.items():
            delivered = delivered_so_far(exchange)
            if delivered > grant.delivered_tokens:
                self._book.deliver(grant.accounts, delivered - grant.delivered_tokens)
                grant.delivered_tokens = delivered

    def ended(self, grant: Grant, exchange: Exchange) -> None:
        """The request ended, in whatever way: it is charged what was delivered."""
        used = delivered_tokens(exchange)
        if used:
            self._counts.tokens.add(grant.principal.name, used)
        if grant.accounts:
            if self._shared.pop(grant, None) is not None and grant.delivered_tokens:
                self._book.deliver(grant.accounts, -grant.delivered_tokens)
            self._book.end(grant.accounts, grant.reserved_tokens, used, self._clock(), counts=exchange.sent)
            self._told_others()

    def _accounts(self, principal: Principal, model: str | None, now_ms: float) -> tuple[Account, ...]:
        """Kept as long as the book forgets none."""
        if self._generation != self._book.generation or len(self._cached) >= _MOST_CACHED:
            self._cached.clear()
        key = (principal.subjects, model)
        accounts = self._cached.get(key)
        if accounts is None:
            accounts = self._found(principal, model, now_ms)
            self._generation = self._book.generation
            if not any(account.subject == OVERFLOW for account in accounts):
                self._cached[key] = accounts
        return accounts

    def _found(self, principal: Principal, model: str | None, now_ms: float) -> tuple[Account, ...]:
        subjects = principal.subjects
        if model is not None and self._rules.by_model:
            tenant = principal.tenant or ANONYMOUS
            if self._rules.has_model(tenant, model):
                subjects = (*subjects, model_subject(tenant, model))
        book = self._book
        return tuple([account for subject in subjects if (account := book.account(subject, now_ms)) is not None])

    def _refused(
        self, principal: Principal, accounts: tuple[Account, ...], refusal: Refusal, now_ms: float
    ) -> NotLetInError:
        self._counts.limited.add((principal.name, str(refusal.kind)))
        account = self._book.get(refusal.subject)
        if account is not None:
            account.refused += 1
        return beyond_limit(refusal, dict(limit_headers(accounts, now_ms)))

    def _told_others(self) -> None:
        if self.changed is not None:
            self.changed()
