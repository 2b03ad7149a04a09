"""EngineWatch: asks one engine again and again, and tells the ledger what it sees. It judges nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from pointsman.core.ledger.events import (
    GpuRead,
    HealthRead,
    MetricsRead,
    WorkerChanged,
    WorkerEvent,
    WorkerJoined,
    WorkerLeft,
)
from pointsman.core.ledger.health.health import FAILED_PROBES_TO_LOSE
from pointsman.core.model.errors import EngineError
from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.edge.cluster.canary import CanaryTarget
from pointsman.edge.cluster.gpu_watch import GpuWatch
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.cluster.status import NOT_ASKED_YET, EngineState, EngineStatus
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.engines.adapter import EngineAdapter
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.facts import CACHED_TOKENS_OFF, EngineFacts
from pointsman.edge.engines.http import EngineCallError, EngineHttp, Trouble
from pointsman.edge.engines.kv_facts import with_kv
from pointsman.edge.engines.load import LoadReading

_log = logging.getLogger("pointsman.cluster")

_SAID_OF_WORKERS = (
    *("role", "gpu_count", "max_batch_size", "queue_depth_threshold", "models", "kv_capacity_tokens", "profile"),
    *("weight", "max_in_flight", "topology_distance", "place", "moves_kv"),
)
"""What a source says of an engine's workers, and not of how the engine is asked."""

Emit = Callable[[WorkerEvent], None]
Clock = Callable[[], float]
"""Now, in ms."""


class FactsListener(Protocol):
    """Hears what engines say of themselves, each time after the ledger has heard of their workers."""

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """An engine was asked what it is; the workers in `joined` just joined, with an empty cache."""

    def engine_left(self, source: WorkerSource) -> None:
        """An engine and all its workers are gone."""


@dataclass(frozen=True, slots=True)
class _Health:
    reachable: bool
    ready: bool
    reason: str
    refused: bool = False
    """Nobody listens there; else it may only be late."""
    asked: bool = True
    """False: it could not be asked for want of something here, and nothing is known of it."""

    @classmethod
    def of(cls, error: EngineError) -> _Health:
        """What an error says."""
        if not isinstance(error, EngineCallError):
            return cls(True, False, str(error))
        refused, asked = error.trouble is Trouble.UNREACHABLE, error.trouble is not Trouble.NOT_ASKED
        return cls(error.reachable, False, str(error), refused, asked)


class EngineWatch:
    """The watch over one engine. `run` is its task; `turn` is one round of it."""

    def __init__(
        self,
        source: WorkerSource,
        http: EngineHttp,
        emit: Emit,
        now_ms: Clock,
        rng: random.Random,
        timing: ProbeTiming,
        health_checks: bool = True,
        listener: FactsListener | None = None,
        gpus: GpuWatch | None = None,
        collect_gpu_use: bool = True,
    ) -> None:
        self._gpus = gpus if collect_gpu_use else None
        self._collect_gpu_use = collect_gpu_use
        self._listener = listener
        self.source = source
        self._health_checks = health_checks
        self._http = http
        self._emit = emit
        self._now_ms = now_ms
        self._rng = rng
        self._timing = timing
        self._adapter: EngineAdapter | None = None
        self._facts: EngineFacts | None = None
        self._workers: dict[WorkerId, WorkerSpec] = {}
        self._readings: dict[int, LoadReading] = {}
        self._canaries: dict[WorkerId, CanaryTarget] = {}
        self._identified_ms = 0.0
        self._stale = True
        """It failed since it was identified."""
        self._restart_seen = False
        self._was_lost = False
        """Since it was identified."""
        self._failures = 0
        self._state = EngineState.LOOKING
        self._reason = NOT_ASKED_YET
        self._since_ms = now_ms()
        self._load_unknown: str | None = None

    @property
    def status(self) -> EngineStatus:
        """For people."""
        return EngineStatus(
            self.source.name,
            self.source.url,
            self._state,
            self._reason,
            self._since_ms,
            self._facts,
            self._load_unknown,
            None if self._gpus is None else self._gpus.unknown,
        )

    def retime(self, timing: ProbeTiming) -> None:
        """Other pauses and limits, from the next round on."""
        self._timing = timing
        self._http.timeout_s = timing.timeout_s

    async def run(self) -> None:
        """Until cancelled. An unexpected error costs one round, not the watch."""
        self.announce()
        while True:
            try:
                await self.turn()
            except Exception:
                self._failures += 1
                _log.exception("%s: probing failed for a reason that nobody expected", self.source.name)
            await asyncio.sleep(self._timing.pause_s(self._failures, self._rng))

    def announce(self) -> None:
        """An engine whose models the configuration names is a worker before it answers: its models then exist."""
        if self.source.models:
            unknown = EngineFacts(kind=self.source.kind or "openai", version=None, models=())
            self._set_workers(unknown, "named in the configuration", restarted=False, same_process=False)

    def change(self, source: WorkerSource) -> bool:
        """Something else is said of the same engine. False: of how it is asked, which takes another watch."""
        said = {name: getattr(self.source, name) for name in _SAID_OF_WORKERS}
        if replace(source, **said) != self.source:
            return False
        self.source = source
        if self._facts is not None:
            self._set_workers(self._facts, "is described otherwise", restarted=False, same_process=True)
        else:
            self.announce()
        return True

    async def turn(self) -> None:
        """One round: identify it where that is due, then ask for its health and load."""
        if self._adapter is None:
            await self._find()
        if self._adapter is not None:
            await self._heartbeat(self._adapter)

    def canary_target(self, worker: WorkerId) -> CanaryTarget | None:
        """How to send a canary to one of its workers; None where nobody knows."""
        spec, facts = self._workers.get(worker), self._facts
        if spec is None or facts is None:
            return None
        if worker not in self._canaries:
            target = CanaryTarget.of(self._http, facts, spec.models, spec.rank)
            if target is None:
                return None
            self._canaries[worker] = target
        return self._canaries[worker]

    def leave(self, reason: str) -> None:
        """All its workers leave."""
        at_ms = self._now_ms()
        for worker in self._workers:
            self._emit(WorkerLeft(worker, at_ms, reason))
        self._workers.clear()
        if self._listener is not None:
            self._listener.engine_left(self.source)

    async def _find(self) -> None:
        try:
            await self._identify(restarted=False)
        except EngineError as error:
            self._failures += 1
            self._tell_health(_Health.of(error))
            self._set_state(EngineState.LOOKING, str(error))

    async def _heartbeat(self, adapter: EngineAdapter) -> None:
        health, readings, gpu_use = await asyncio.gather(
            self._read_health(adapter), self._read_load(adapter), self._read_gpus()
        )
        self._restart_seen = self._restart_seen or self._shows_restart(readings)
        if health.reachable and (self._identify_due() or not health.ready):
            health = await self._identify_again(health)
        self._stale = self._stale or (health.asked and not health.ready)
        self._tell_health(health)
        if readings is not None:
            self._tell_load(readings)
        if self._gpus is not None:
            self._tell_gpus(gpu_use)
        if health.reachable:
            self._failures = 0
            self._set_state(EngineState.READY if health.ready else EngineState.NOT_READY, health.reason)
        elif health.asked:
            self._failures += 1
            if self._failures >= FAILED_PROBES_TO_LOSE and readings is None:
                self._was_lost = True
                self._set_state(EngineState.LOST, health.reason)

    def _identify_due(self) -> bool:
        overdue = self._now_ms() - self._identified_ms >= 1000.0 * self._timing.identify_interval_s
        return overdue or self._stale or self._restart_seen

    async def _identify_again(self, health: _Health) -> _Health:
        """Before a worker counts as ready again it is asked what it is: another model may answer there now."""
        sure = not (self._stale or self._restart_seen)
        unknown = self._was_lost and not any(reading.would_show_restart for reading in self._readings.values())
        try:
            await self._identify(self._restart_seen or unknown)
        except EngineError as error:
            found = _Health.of(error)
            return health if not health.ready or (sure and not found.reachable) else found
        return health

    async def _identify(self, restarted: bool) -> None:
        adapter, facts = await detect(self._http, self.source.kind)
        if not (self.source.models or facts.models):
            raise EngineError(f"{self.source.url} lists no model; load one, or name `models` in the configuration")
        if self._facts is None or restarted or facts.version != self._facts.version:
            facts = await adapter.probe(self._http, facts)
            facts = await with_kv(self._http, facts, self.source.cache_transport)
            reason = "restarted" if restarted else "joined"
        else:
            facts = _keep_probed(facts, self._facts)
            facts = await with_kv(self._http, facts, self.source.cache_transport, self._facts)
            reason = "changed"
        same_process = self._facts is not None and not (restarted or self._stale)
        self._adapter = adapter
        self._facts = facts
        self._canaries.clear()
        self._identified_ms = self._now_ms()
        self._stale = self._restart_seen = self._was_lost = False
        if not facts.capabilities.load:
            self._load_unknown = None
        joined = self._set_workers(facts, reason, restarted=restarted, same_process=same_process)
        if self._listener is not None:
            self._listener.engine_known(self.source, facts, joined)

    def _set_workers(
        self, facts: EngineFacts, reason: str, *, restarted: bool, same_process: bool
    ) -> frozenset[WorkerId]:
        """Tell the ledger; returns the workers that joined."""
        at_ms = self._now_ms()
        specs = [self.source.spec(facts, rank) for rank in facts.ranks]
        wanted = {spec.id: spec for spec in specs}
        for worker in [worker for worker in self._workers if worker not in wanted]:
            self._emit(WorkerLeft(worker, at_ms, "the engine has fewer ranks now"))
        news = [spec for spec in specs if restarted or self._workers.get(spec.id) != spec]
        changed = bool(news) or len(wanted) != len(self._workers)
        known, self._workers = self._workers, wanted
        joined = frozenset(spec.id for spec in news if not (same_process and spec.id in known))
        for spec in news:
            self._emit(WorkerJoined(spec, at_ms) if spec.id in joined else WorkerChanged(spec, at_ms))
        if restarted:
            self._readings.clear()
        if changed:
            _log.info("%s %s (%s): %s", self.source.name, reason, self.source.url, facts.describe())
        return joined

    async def _read_health(self, adapter: EngineAdapter) -> _Health:
        if not self._health_checks:
            return _Health(True, True, "health checks are switched off")
        try:
            path, status = await self._health_status(adapter.health_paths)
        except EngineCallError as error:
            return _Health.of(error)
        return _Health(True, status == 200, f"GET {path} answered {status}")

    async def _health_status(self, paths: tuple[str, ...]) -> tuple[str, int]:
        path, status = "", 404
        for path in paths:
            status = (await self._http.get(path)).status
            if status != 404:
                break
        return path, status

    async def _read_load(self, adapter: EngineAdapter) -> tuple[LoadReading, ...] | None:
        """None: unknown, which is neither idle nor dead."""
        if self._facts is not None and not self._facts.capabilities.load:
            return None
        try:
            readings = await adapter.read_load(self._http)
        except Exception as error:  # a page that nobody foresaw must not hide whether the engine lives
            if self._load_unknown is None:
                unforeseen = None if isinstance(error, EngineCallError) else error
                _log.warning("%s: its load is unknown from now on: %s", self.source.name, error, exc_info=unforeseen)
            self._load_unknown = str(error) or type(error).__name__
            return None
        if self._load_unknown is not None:
            _log.info("%s: its load is known again", self.source.name)
            self._load_unknown = None
        return readings

    async def _read_gpus(self) -> float | None:
        return None if self._gpus is None else await self._gpus.read()

    def _shows_restart(self, readings: tuple[LoadReading, ...] | None) -> bool:
        earlier = self._readings
        return any(r.rank in earlier and r.shows_restart_since(earlier[r.rank]) for r in readings or ())

    def _tell_health(self, health: _Health) -> None:
        if not health.asked:
            return
        at_ms = self._now_ms()
        for worker in self._workers:
            self._emit(HealthRead(worker, at_ms, health.reachable, health.ready, health.reason, health.refused))

    def _tell_load(self, readings: tuple[LoadReading, ...]) -> None:
        at_ms = self._now_ms()
        by_rank = {spec.rank: worker for worker, spec in self._workers.items()}
        for reading in readings:
            self._readings[reading.rank] = reading
            worker = by_rank.get(reading.rank)
            if worker is not None:
                self._emit(_metrics_read(worker, at_ms, reading))
                if reading.gpu_use is not None and self._collect_gpu_use and self._gpus is None:
                    self._emit(GpuRead(worker, at_ms, reading.gpu_use))

    def _tell_gpus(self, use: float | None) -> None:
        at_ms = self._now_ms()
        for worker in self._workers:
            self._emit(GpuRead(worker, at_ms, use, None if self._gpus is None else self._gpus.memory))

    def _set_state(self, state: EngineState, reason: str) -> None:
        changed = state is not self._state or (state is EngineState.LOOKING and reason != self._reason)
        self._reason = reason
        if not changed:
            return
        self._state = state
        self._since_ms = self._now_ms()
        if state is EngineState.LOOKING:
            # Of engines that have workers the health log tells.
            _log.warning("%s cannot be used yet: %s", self.source.name, reason)


def _metrics_read(worker: WorkerId, at_ms: float, reading: LoadReading) -> MetricsRead:
    return MetricsRead(
        worker,
        at_ms,
        reading.running,
        reading.waiting,
        reading.kv_use,
        reading.kv_capacity_tokens,
        reading.running_adapters,
        reading.most_adapters,
        reading.generated_tokens_total,
    )


def _keep_probed(facts: EngineFacts, before: EngineFacts) -> EngineFacts:
    """New facts, with what only a request could tell taken from the earlier ones."""
    if facts.capabilities.cached_tokens is not None:
        return facts
    probed = before.capabilities.cached_tokens
    hints = tuple(hint for hint in before.hints if hint.startswith(CACHED_TOKENS_OFF) and probed is False)
    return replace(facts, capabilities=replace(facts.capabilities, cached_tokens=probed), hints=facts.hints + hints)
