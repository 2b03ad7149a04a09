"""Prober: owns one watch an engine, and the connections that probes use."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import aiohttp

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import WorkerId, engine_of
from pointsman.edge.cluster.canary import CanaryTarget
from pointsman.edge.cluster.engine_watch import Clock, Emit, EngineWatch, FactsListener
from pointsman.edge.cluster.gpu_watch import GpuWatch
from pointsman.edge.cluster.members import WorkerSource, checked, same_url
from pointsman.edge.cluster.status import EngineStatus
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.wire.trust import Trusts


class Prober:
    """Watches engines until it is closed. Engines that do not answer never hold up the start of the others.

    `emit` gets ledger events, in order for each engine, on the event loop that `start` ran on. `now_ms` is the clock of
    the events. `trusts` is for engines with https; None trusts what the system trusts. Without `health_checks` an
    engine that was once identified counts as ready for ever. `listener` hears of engines after the ledger did. Without
    `collect_gpu_use` nobody asks how busy GPUs are.
    """

    def __init__(
        self,
        emit: Emit,
        now_ms: Clock,
        rng: random.Random,
        *,
        timing: ProbeTiming | None = None,
        trusts: Trusts | None = None,
        health_checks: bool = True,
        listener: FactsListener | None = None,
        collect_gpu_use: bool = True,
    ) -> None:
        self._collect_gpu_use = collect_gpu_use
        self._health_checks = health_checks
        self._listener = listener
        self._emit = emit
        self._now_ms = now_ms
        self._rng = rng
        self._timing = timing or ProbeTiming()
        self._trusts = trusts or Trusts()
        self._session: aiohttp.ClientSession | None = None
        self._watches: dict[str, tuple[EngineWatch, asyncio.Task[None]]] = {}
        self._urls: set[str] = set()
        """Of those that are watched."""

    async def start(self, sources: Iterable[WorkerSource] = ()) -> None:
        """Starts watching; returns at once. Raises ConfigError for sources that can't be used."""
        usable = checked(sources)
        self._session = aiohttp.ClientSession(
            # No limit: a hung engine must not keep the probe of another one waiting for a connection.
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        for source in usable:
            self.add(source)

    def add(self, source: WorkerSource) -> None:
        """Watches one more engine. Raises ConfigError if its name or URL is watched already."""
        if self._session is None:
            raise RuntimeError("start() first")
        checked([source])
        self._refuse_second(source)
        self._trusts.use(source.url, source.tls)
        http = EngineHttp(
            self._session,
            source.url,
            api_key=source.api_key,
            trust=self._trusts.of_url(source.url),
            timeout_s=self._timing.timeout_s,
        )
        watch = EngineWatch(
            source,
            http,
            self._emit,
            self._now_ms,
            self._rng,
            self._timing,
            self._health_checks,
            self._listener,
            self._gpu_watch(source, self._session),
            self._collect_gpu_use,
        )
        task = asyncio.create_task(watch.run(), name=f"probe {source.name}")
        self._watches[source.name] = (watch, task)
        self._urls.add(same_url(source.url))

    def _gpu_watch(self, source: WorkerSource, session: aiohttp.ClientSession) -> GpuWatch | None:
        url = source.gpu_metrics_url
        if url is None or not self._collect_gpu_use:
            return None
        # Never with the engine's key: it is another server.
        http = EngineHttp(session, url.base, trust=self._trusts.of_url(url.base), timeout_s=self._timing.timeout_s)
        return GpuWatch(source.name, http, url.page, source.gpus)

    def _refuse_second(self, source: WorkerSource) -> None:
        url = same_url(source.url)
        if source.name in self._watches or url in self._urls:
            what = f"name {source.name!r}" if source.name in self._watches else f"URL {source.url!r}"
            raise ConfigError(f"two engines have the {what}; name each engine once")

    def change(self, source: WorkerSource) -> bool:
        """Says something else of an engine that is watched. False: not without watching it anew; nothing is changed.

        Raises ConfigError for an unknown name.
        """
        if source.name not in self._watches:
            raise ConfigError(f"no engine is called {source.name!r}; there are {', '.join(self._watches) or 'none'}")
        return self._watches[source.name][0].change(source)

    async def remove(self, name: str, reason: str = "removed from the configuration") -> None:
        """Stops watching an engine; its workers leave. Raises ConfigError for an unknown name."""
        if name not in self._watches:
            raise ConfigError(f"no engine is called {name!r}; there are {', '.join(self._watches) or 'none'}")
        watch, task = self._watches.pop(name)
        self._urls.discard(same_url(watch.source.url))
        await _stop([task])
        self._trusts.forget(watch.source.url)
        watch.leave(reason)

    def retime(self, timing: ProbeTiming) -> None:
        """Other pauses and limits, from each engine's next round on."""
        self._timing = timing
        for watch, _ in self._watches.values():
            watch.retime(timing)

    def canary_target(self, worker: WorkerId) -> CanaryTarget | None:
        """How to send a canary to a worker; None where nobody knows."""
        watched = self._watches.get(engine_of(worker))
        return None if watched is None else watched[0].canary_target(worker)

    def statuses(self) -> tuple[EngineStatus, ...]:
        """All engines, also those that never answered."""
        return tuple(watch.status for watch, _ in self._watches.values())

    async def close(self) -> None:
        """Stops all watches. The ledger hears nothing of it."""
        tasks = [task for _, task in self._watches.values()]
        self._watches.clear()
        self._urls.clear()
        await _stop(tasks)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
