"""Tenancy: keys, limits and what is told of them, put together for one front end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.limits.book import MOST_ACCOUNTS, Book
from pointsman.core.limits.limits import Limits
from pointsman.edge.cluster.replicas.bus import Bus
from pointsman.edge.configuration.auth import Auth
from pointsman.edge.configuration.keys_file import KeysFile
from pointsman.edge.configuration.tenants import Tenants
from pointsman.edge.configuration.tree import is_loopback
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.tenants.counts import TenantCounts
from pointsman.edge.serving.tenants.gate import Gate
from pointsman.edge.serving.tenants.key_ring import KeyRing
from pointsman.edge.serving.tenants.keys_watch import KeysWatch
from pointsman.edge.serving.tenants.report import KeysReport, TenancyReport, account_reports
from pointsman.edge.serving.tenants.rules import Rules
from pointsman.edge.serving.tenants.sharing import LimitsOnBus

_log = logging.getLogger("pointsman.serving")


@dataclass(frozen=True, slots=True)
class TenancySettings:
    """What a front end is told of keys and limits."""

    keys_file: Path | None = None
    """None: nobody is asked for a key."""
    tenants: Tenants = field(default_factory=Tenants)

    @classmethod
    def of(cls, auth: Auth, tenants: Tenants) -> TenancySettings:
        """From the sections of the configuration."""
        return cls(None if auth.keys_file is None else Path(auth.keys_file), tenants)


class Tenancy:
    """Make it inside a running event loop. Raises ConfigError when the file of keys can't be read."""

    def __init__(
        self,
        settings: TenancySettings,
        ledger: Ledger,
        bus: Bus,
        clock: Clock,
        epoch_s: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._host = "127.0.0.1"
        self.clock = clock
        self.epoch_s = epoch_s
        self.counts = TenantCounts()
        self.watch = self._watching(settings.keys_file)
        self._ring = None if self.watch is None else KeyRing(self.watch.first.keys)
        self._rules = Rules(settings.tenants, self._ring or KeyRing())
        self.book = Book(self._limits_of, MOST_ACCOUNTS + self._rules.named_parties)
        self.gate = Gate(self._ring, self._rules, self.book, ledger, self.counts, clock, epoch_s)
        self._sharing = LimitsOnBus(self.book, bus, clock, self.counts)
        self.book.tells = not self._sharing.alone
        if not self._sharing.alone:
            self.gate.changed = self._sharing.changed

    def _watching(self, keys_file: Path | None) -> KeysWatch | None:
        return None if keys_file is None else KeysWatch(keys_file, self._took, self.counts)

    def _limits_of(self, subject: str) -> Limits:
        return self._rules.limits_of(subject)

    def start(self, host: str) -> None:
        """Watch the file of keys. `host`: where clients are listened to."""
        self._host = host
        if self.watch is not None:
            self.watch.start()
        else:
            self._say_open()

    def _say_open(self) -> None:
        if not is_loopback(self._host):
            _log.warning(
                "listening on %s, and nobody is asked for a key: whoever can connect can use the engines; "
                "auth.keys_file changes that",
                self._host,
            )

    async def close(self) -> None:
        """Watch and tell nothing more."""
        self._sharing.close()
        if self.watch is not None:
            await self.watch.close()

    def look(self) -> None:
        """Once a second: tell other replicas everything again."""
        if self.gate.active:
            self.gate.look()
            self._sharing.look()

    async def reload(self, settings: TenancySettings) -> None:
        """Other settings from now on, and the file of keys read again. Raises ConfigError, and nothing has changed."""
        if settings.keys_file != self._settings.keys_file:
            watch = self._watching(settings.keys_file)
            old, self.watch = self.watch, watch
            self._settings = settings
            self._put_in_force(None if watch is None else KeyRing(watch.first.keys))
            if old is not None:
                await old.close()
            if watch is not None:
                watch.start()
            else:
                self._say_open()
            return
        ring = None if self.watch is None else KeyRing((await self.watch.read()).keys)
        self._settings = settings
        self._put_in_force(ring)

    def _took(self, keys: KeysFile) -> None:
        self._put_in_force(KeyRing(keys.keys))

    def _put_in_force(self, ring: KeyRing | None) -> None:
        self._ring = ring
        self._rules = Rules(self._settings.tenants, ring or KeyRing())
        self.book.most = MOST_ACCOUNTS + self._rules.named_parties
        self.book.reload(self.clock())
        self.gate.change(ring, self._rules)

    # ---- for people

    @property
    def ring(self) -> KeyRing | None:
        """The keys in force; None: nobody is asked for one."""
        return self._ring

    @property
    def keys_fault(self) -> str | None:
        """What is wrong with the file of keys as it is now."""
        return None if self.watch is None else self.watch.fault

    def report(self) -> TenancyReport | None:
        """None: there are neither keys nor limits."""
        if not self.gate.active:
            return None
        accounts, more = account_reports(self.book, self.clock())
        return TenancyReport(self._keys(), accounts, more)

    def _keys(self) -> KeysReport | None:
        watch, ring = self.watch, self._ring
        if watch is None or ring is None:
            return None
        return KeysReport(
            str(watch.path), len(ring.keys), ring.expired(self.epoch_s()), round(watch.read_at_s, 3), watch.fault
        )
