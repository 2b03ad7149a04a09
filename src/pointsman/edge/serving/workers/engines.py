"""Engines: all places where a front end finds engines, and the one list that they make."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role, WorkerSpec, engine_of
from pointsman.edge.cluster.discovery.discovery import (
    Discovery,
    DiscoveryState,
    DiscoveryStatus,
)
from pointsman.edge.cluster.discovery.etcd_source import EtcdDiscovery
from pointsman.edge.cluster.discovery.file_source import FileDiscovery
from pointsman.edge.cluster.discovery.hearsay import Hearsay
from pointsman.edge.cluster.etcd.client import EtcdClient
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.membership import CONFIGURATION, ETCD, FILE, Membership
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.cluster.replicas.bus import Bus
from pointsman.edge.cluster.status import EngineState
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.drains import Drains
from pointsman.edge.serving.workers.registrar import Registrar
from pointsman.edge.serving.workers.report import (
    DiscoveryReport,
    WorkersDocument,
    discovery_report,
    workers_document,
)
from pointsman.edge.serving.workers.roles import Roles
from pointsman.edge.serving.workers.settings import DiscoverySettings
from pointsman.edge.traces.profile_file import load_profile

_log = logging.getLogger("pointsman.serving")


def _wall_ms() -> float:
    return time.time() * 1000.0


class Engines:
    """Of one front end. `profiles`: those that the ledger knows already; `wall_ms`: the time of day."""

    def __init__(
        self,
        settings: DiscoverySettings,
        prober: Prober,
        drains: Drains,
        bus: Bus,
        ledger: Ledger,
        now_ms: Clock,
        rng: random.Random,
        roles: Roles,
        profiles: Collection[str] = (),
        wall_ms: Clock = _wall_ms,
    ) -> None:
        self._prober = prober
        self._drains = drains
        self._ledger = ledger
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._profiles = set(profiles)
        self.membership = Membership(prober, drains)
        self._roles = roles
        self.registrar = Registrar(self.membership, drains, bus, settings.read, self._answers, now_ms, wall_ms, roles)
        self._client = None if settings.etcd is None else EtcdClient(settings.etcd)
        self._places = self._make_places(settings, bus, rng)
        self._tasks: list[asyncio.Task[None]] = []

    def _make_places(self, settings: DiscoverySettings, bus: Bus, rng: random.Random) -> tuple[Discovery, ...]:
        places: list[Discovery] = []
        if settings.file is not None:
            places.append(
                FileDiscovery(
                    settings.file,
                    settings.read_file,
                    partial(self.membership.offer, FILE),
                    self._now_ms,
                    interval_s=settings.file_interval_s,
                )
            )
        if self._client is not None:
            etcd = EtcdDiscovery(
                self._client,
                settings.etcd_prefix,
                settings.read,
                partial(self.membership.offer, ETCD),
                self._now_ms,
                rng,
                resync_s=settings.resync_s,
                grace_s=settings.vanish_grace_s,
            )
            places.append(etcd)
            Hearsay(bus, settings.etcd_prefix, etcd)
        return tuple(places)

    async def start(self, configured: Sequence[WorkerSource]) -> None:
        """Watch the configured engines, and begin to look for others. The prober must have been started."""
        self.membership.offer(CONFIGURATION, configured)
        await self.membership.start()
        self._tasks = [
            asyncio.create_task(place.run(), name=f"engines of {place.status.origin}") for place in self._places
        ]

    async def close(self) -> None:
        """Look for no more; the watches belong to the prober."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.membership.close()
        if self._client is not None:
            await self._client.close()

    def _answers(self, name: str) -> bool:
        states = (engine.state for engine in self._prober.statuses() if engine.name == name)
        return next(states, None) in (EngineState.READY, EngineState.NOT_READY)

    def look(self) -> None:
        """Every second or so."""
        self.registrar.look()
        self._roles.look()

    def joining(self, spec: WorkerSpec) -> str | None:
        """The key of the engine of a worker that is about to join or change; the ledger knows its profile then."""
        if spec.profile is not None and spec.profile not in self._profiles:
            self._profiles.add(spec.profile)
            try:
                self._ledger.know_profile(spec.profile, load_profile(spec.profile).step)
            except ConfigError as error:
                _log.error("step times of workers with profile %s are learned from nothing: %s", spec.profile, error)
        source = self.membership.source(engine_of(spec.id))
        return None if source is None else source.api_key

    def described(self, spec: WorkerSpec) -> None:
        """The ledger has heard of a worker that joined or changed: its role may be another one by order."""
        self._roles.described(spec, self.registrar.role_of(spec))

    def statuses(self) -> tuple[DiscoveryStatus, ...]:
        """All places."""
        configured = sum(member.origin == CONFIGURATION for member in self.membership.members())
        configuration = DiscoveryStatus(
            CONFIGURATION, "execution-group.nodes", DiscoveryState.CONNECTED, "", self._began_ms, configured
        )
        return (configuration, self.registrar.status, *(place.status for place in self._places))

    def unread(self) -> list[str]:
        """Places that could not be read so far: nobody knows which engines they name."""
        return [
            f"engines of {place.origin} {place.where} ({place.reason})"
            for place in self.statuses()
            if place.state is not DiscoveryState.CONNECTED and not place.engines
        ]

    def report(self) -> DiscoveryReport:
        """For `status`."""
        return discovery_report(self.statuses(), self.membership, self._now_ms())

    def document(self) -> WorkersDocument:
        """For `GET /v1/workers`."""
        requests: Counter[str] = Counter()
        roles: dict[str, Role] = {}
        for worker in self._ledger.snapshot().workers:
            requests[engine_of(worker.id)] += worker.running
            roles[engine_of(worker.id)] = worker.spec.role
        return workers_document(self.report(), self._prober.statuses(), self.membership, self._drains, requests, roles)
