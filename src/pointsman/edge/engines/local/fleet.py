"""LocalFleet: several engines on this computer, started, watched, started again, stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.local.model_spec import ModelFile
from pointsman.edge.engines.local.process import EngineCommand, EngineProcess, llama_command
from pointsman.edge.engines.local.settings import LocalEngineSettings

_log = logging.getLogger("pointsman.engines")


@dataclass(frozen=True, slots=True)
class FleetTimes:
    """How patient the supervisor is, in seconds."""

    ready_limit_s: float = 300.0
    """Loading a large model from a slow disk takes minutes."""
    first_pause_s: float = 0.5
    """Before an engine that ended is started again; doubles up to `longest_pause_s`."""
    longest_pause_s: float = 30.0
    calm_s: float = 60.0
    """An engine that ran this long begins with `first_pause_s` again."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine to be."""

    name: str
    settings: LocalEngineSettings


ReadyCallback = Callable[[str, str], None]
"""Called with name and URL each time that an engine is ready."""


def plan_engines(models: Sequence[ModelFile], engines_per_model: int, cores: int) -> list[EnginePlan]:
    """`engines_per_model` engines a model; cores are split evenly, each engine gets one at least."""
    threads = max(1, cores // (len(models) * engines_per_model))
    return [
        EnginePlan(
            f"{model.name}-{number}",
            LocalEngineSettings(model_path=str(model.path), model_name=model.name, threads=threads),
        )
        for model in models
        for number in range(1, engines_per_model + 1)
    ]


class LocalEngine:
    """One engine of the fleet over all its runs. Keeps its port, so that its URL stays."""

    def __init__(self, plan: EnginePlan, log: Path, times: FleetTimes, command: EngineCommand) -> None:
        self.name = plan.name
        self.log = log
        self.url = ""
        self.restarts = 0
        self._settings = plan.settings
        self._times = times
        self._command = command
        self._process: EngineProcess | None = None

    @property
    def model(self) -> str:
        """Name of the model that it serves."""
        return self._settings.model_name

    @property
    def kv_tokens(self) -> int:
        """Tokens that its KV cache holds."""
        return self._settings.context_tokens

    @property
    def pid(self) -> int | None:
        """Process id of the current run, None between two."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it and wait until it can be used. Raises EngineError; then nothing runs."""
        try:
            process = await EngineProcess.start(self._command(self._settings), self.log)
            try:
                self.url = await process.ready(self._times.ready_limit_s)
            except BaseException:
                process.kill()
                await asyncio.shield(process.ended())
                raise
        except EngineError as error:
            raise EngineError(f"engine {self.name} {error}") from None
        self._process = process
        self._settings = msgspec.structs.replace(self._settings, port=int(self.url.rpartition(":")[2]))

    async def watch(self, on_ready: ReadyCallback) -> None:
        """Start it again whenever it ends, for ever."""
        pause_s = self._times.first_pause_s
        while True:
            began = time.monotonic()
            if self._process is not None:
                reason = f"engine {self.name} {await self._process.ended()}"
                self._process = None
                if time.monotonic() - began >= self._times.calm_s:
                    pause_s = self._times.first_pause_s
            _log.warning("%s; starting it again in %.1f s (log: %s)", reason, pause_s, self.log)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._times.longest_pause_s)
            self.restarts += 1
            try:
                await self.start()
            except EngineError as error:
                reason = str(error)
            else:
                on_ready(self.name, self.url)

    async def stop(self, grace_s: float) -> None:
        """Stop the current run, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(grace_s)


class LocalFleet:
    """Engines on this computer. Use `start`, then `close` whatever happened."""

    def __init__(
        self,
        plans: Sequence[EnginePlan],
        log_directory: Path,
        *,
        on_ready: ReadyCallback = lambda name, url: None,
        times: FleetTimes | None = None,
        command: EngineCommand = llama_command,
    ) -> None:
        self._directory = log_directory
        self._on_ready = on_ready
        self._tasks: list[asyncio.Task[None]] = []
        used_times = FleetTimes() if times is None else times
        self.engines = tuple(
            LocalEngine(plan, log_directory / f"{_file_name(plan.name)}.log", used_times, command) for plan in plans
        )

    async def start(self) -> None:
        """Start all side by side and wait for all. Raises EngineError when one can't start; then none is left."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for engine in self.engines:
                engine.log.unlink(missing_ok=True)
        except OSError as error:
            raise EngineError(f"{self._directory}: can't be made for the engines' logs: {error.strerror}") from error
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self.engines:
                    group.create_task(self._start_one(engine), name=f"start {engine.name}")
        except* EngineError as errors:
            await self.close(0)
            raise errors.exceptions[0] from None
        self._tasks = [
            asyncio.create_task(engine.watch(self._on_ready), name=f"watch {engine.name}") for engine in self.engines
        ]

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop all engines; those that haven't ended after `grace_s` are killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(engine.stop(grace_s) for engine in self.engines))

    async def _start_one(self, engine: LocalEngine) -> None:
        await engine.start()
        self._on_ready(engine.name, engine.url)


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
