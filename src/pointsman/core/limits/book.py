"""Book: the accounts of all parties, bounded, and what replicas tell each other of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pointsman.core.limits.account import MOST_REPLICAS, Account, Levels, Spent
from pointsman.core.limits.limits import NO_LIMITS, Limits, Refusal

MOST_ACCOUNTS = 10_000
OVERFLOW = "others"
"""Whose account parties share that find no room."""
_LOOKED_AT = 8
"""Accounts that are looked at for one that can be forgotten."""
_TOLD_AGAIN = 10
"""Times that an account in no use is still told of: the word that its last request ended may have been lost."""

LimitsOf = Callable[[str], Limits]
"""Of a subject; NO_LIMITS for one that nobody knows."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one replica says of one account."""

    subject: str
    spent: Spent
    levels: Levels


class Book:
    """Accounts by subject. One that is as good as new is forgotten when there are too many; if none is, newcomers
    share one account, so that inventing names gains nothing."""

    def __init__(self, limits_of: LimitsOf, most: int = MOST_ACCOUNTS) -> None:
        self._limits_of = limits_of
        self.most = most
        self.generation = 0
        """Grows when accounts were forgotten: whoever keeps some has to ask again."""
        self.tells = True
        """What changed is noted for others."""
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._changed: dict[str, Account] = {}
        self._lately: dict[str, int] = {}
        """Subjects that others were told of, and how often they are to be told again whatever becomes of them."""
        self._known: dict[str, None] = {}
        """Replicas that were heard."""

    def __len__(self) -> int:
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def get(self, subject: str) -> Account | None:
        """The account if there is one."""
        return self._accounts.get(subject)

    def account(self, subject: str, now_ms: float) -> Account | None:
        """The account, opened if need be; None: the subject has no limits."""
        account = self._accounts.get(subject)
        if account is not None:
            self._accounts.move_to_end(subject)
            return account
        limits = self._limits_of(subject)
        if not limits.any:
            return None
        if len(self._accounts) >= self.most and not self._make_room(now_ms):
            return self._accounts.get(OVERFLOW) or self._open(OVERFLOW, limits, now_ms)
        return self._open(subject, limits, now_ms)

    def _open(self, subject: str, limits: Limits, now_ms: float) -> Account:
        account = self._accounts[subject] = Account(subject, limits, now_ms)
        return account

    def _make_room(self, now_ms: float) -> bool:
        for _ in range(min(_LOOKED_AT, len(self._accounts))):
            subject, account = next(iter(self._accounts.items()))
            if account.is_idle(now_ms):
                self._forget(subject)
                return True
            self._accounts.move_to_end(subject)
        return False

    def _forget(self, subject: str) -> None:
        self.generation += 1
        del self._accounts[subject]
        self._changed.pop(subject, None)
        self._lately.pop(subject, None)

    # ---- requests of this replica

    def refusal(self, accounts: Iterable[Account], tokens: float, now_ms: float) -> Refusal | None:
        """Of the account that it would have to wait for longest; None: it may begin."""
        worst: Refusal | None = None
        for account in accounts:
            found = account.refusal(tokens, now_ms)
            if found is not None and (worst is None or (found.wait_ms or 0.0) > (worst.wait_ms or 0.0)):
                worst = found
        return worst

    def begin(self, accounts: Iterable[Account], tokens: float, now_ms: float) -> None:
        """A request begins and sets so many tokens aside in each account."""
        for account in accounts:
            account.begin(tokens, now_ms)
            if self.tells:
                self._changed[account.subject] = account

    def end(
        self, accounts: Iterable[Account], reserved: float, used: float, now_ms: float, *, counts: bool = True
    ) -> None:
        """It ended and came to `used` tokens; not `counts`: as if it had never been asked."""
        for account in accounts:
            account.end(reserved, used, now_ms, counts=counts)
            if self.tells:
                self._changed[account.subject] = account

    def deliver(self, accounts: Iterable[Account], tokens: float) -> None:
        """One that runs came to so many more tokens; less than 0: they are settled. Others hear of it with the rest."""
        for account in accounts:
            account.deliver(tokens)

    # ---- replicas

    def changed(self, now_ms: float) -> list[Row]:
        """What others have not been told yet; they have been, after this."""
        accounts, self._changed = self._changed, {}
        self._lately.update(dict.fromkeys(accounts, _TOLD_AGAIN))
        return [_row(account, now_ms) for account in accounts.values()]

    def whole(self, now_ms: float) -> list[Row]:
        """What somebody has to be told who knows nothing yet, or missed something: all accounts in use or lately so."""
        lately = self._lately
        return [_row(account, now_ms) for account in self if account.subject in lately or not account.is_idle(now_ms)]

    def again(self, now_ms: float) -> list[Row]:
        """The same, for all. Call it now and then."""
        rows = self.whole(now_ms)
        self._lately = {subject: times - 1 for subject, times in self._lately.items() if times > 1}
        return rows

    def heard(self, replica: str, rows: Iterable[Row], now_ms: float) -> None:
        """What another replica says. Rows on subjects without limits here are left out."""
        is_new = replica not in self._known
        for row in rows:
            account = self.account(row.subject, now_ms)
            if account is not None and account.subject == row.subject:
                account.heard(replica, row.spent, row.levels, now_ms, is_new=is_new)
        if is_new:
            if len(self._known) >= MOST_REPLICAS:
                del self._known[next(iter(self._known))]
            self._known[replica] = None

    def gone(self, replica: str, now_ms: float) -> None:
        """A replica is gone; what it held is free."""
        for account in self:
            account.gone(replica, now_ms)

    # ---- other limits

    def reload(self, now_ms: float) -> None:
        """The limits of subjects may be others now. What runs is counted on."""
        for subject, account in tuple(self._accounts.items()):
            limits = account.limits if subject == OVERFLOW else self._limits_of(subject)
            if limits.any or account.running:
                account.change(limits if limits.any else NO_LIMITS, now_ms)
            else:
                self._forget(subject)
        self.generation += 1


def _row(account: Account, now_ms: float) -> Row:
    own = account.own
    spent = Spent(own.requests, own.tokens, own.reserved, own.running, own.delivered)
    return Row(account.subject, spent, account.levels(now_ms))
