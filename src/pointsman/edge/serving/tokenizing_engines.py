"""TokenizingEngines: which engine is asked to tokenize a prompt, where engines do that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pointsman.core.model.errors import EngineError
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.detect import adapter_of
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineCallError
from pointsman.edge.prompts.engine_prompts import EngineTokenize
from pointsman.edge.serving.engine_calls import EngineCalls

_log = logging.getLogger("pointsman.serving")

Prompt = str | Sequence[Mapping[str, object]]

TRY_LIMIT_S = 0.9
"""For one engine; a prompt waits for 1 s in all."""
FIRST_SKIP_S = 2.0
LONGEST_SKIP_S = 60.0


@dataclass(slots=True)
class _Engine:
    source: WorkerSource
    kind: str
    models: tuple[str, ...]
    failures: int = 0
    skipped_until_s: float = 0.0


class NobodyTokenizesError(EngineError):
    """No engine can be asked just now; says why, and nobody waited."""


class TokenizingEngines:
    """The engines of a model take turns. One that fails is skipped for a while, twice as long each time it fails again;
    after that one prompt tries it, and the others go elsewhere until it answered.
    """

    def __init__(
        self,
        calls: EngineCalls,
        clock_s: Callable[[], float] = time.monotonic,
        try_limit_s: float = TRY_LIMIT_S,
    ) -> None:
        self._calls = calls
        self._clock_s = clock_s
        self._try_limit_s = try_limit_s
        self._engines: dict[str, _Engine] = {}

    def known(self, source: WorkerSource, facts: EngineFacts, models: Sequence[str]) -> None:
        """An engine that can tokenize for these models. What is known of its failures stays."""
        engine = self._engines.get(source.name)
        if engine is None or engine.source != source:
            self._engines[source.name] = _Engine(source, facts.kind, tuple(models))
        else:
            engine.kind, engine.models = facts.kind, tuple(models)

    def left(self, name: str) -> None:
        """It is not asked any more."""
        self._engines.pop(name, None)

    def can(self, model: str) -> bool:
        """True if an engine of this model tokenizes, whether or not it is skipped just now."""
        return any(model in engine.models for engine in self._engines.values())

    def tokenize_of(self, model: str) -> EngineTokenize:
        """Asks whoever is there when a prompt comes. Raises NobodyTokenizesError."""

        async def tokenize(prompt: Prompt) -> list[int] | None:
            return await self._tokenize(model, prompt)

        return tokenize

    async def _tokenize(self, model: str, prompt: Prompt) -> list[int] | None:
        while True:
            engine = self._next(model)
            failures = engine.failures
            try:
                return await self._ask(engine, model, prompt)
            except EngineCallError as error:
                self._failed(engine, failures, str(error))
            except TimeoutError:
                self._failed(engine, failures, f"no tokens within {self._try_limit_s:g} s")
                raise

    def _next(self, model: str) -> _Engine:
        now_s = self._clock_s()
        able = (engine for engine in self._engines.values() if model in engine.models)
        engine = next((engine for engine in able if engine.skipped_until_s <= now_s), None)
        if engine is None:
            why = "all of them failed lately" if self.can(model) else "none is left"
            raise NobodyTokenizesError(f"no engine of {model} can be asked: {why}")
        # Its turn is over: the next prompt is another one's.
        self._engines[engine.source.name] = self._engines.pop(engine.source.name)
        if engine.failures:
            engine.skipped_until_s = now_s + self._try_limit_s
        return engine

    async def _ask(self, engine: _Engine, model: str, prompt: Prompt) -> list[int] | None:
        async with asyncio.timeout(self._try_limit_s):
            tokens = await adapter_of(engine.kind).tokenize(self._calls.to(engine.source), model, prompt)
        if engine.failures:
            _log.info("%s: tokenizes again", engine.source.name)
        engine.failures, engine.skipped_until_s = 0, 0.0
        return tokens

    def _failed(self, engine: _Engine, failures_before: int, why: str) -> None:
        """Prompts that were waiting for it together are one failure."""
        if engine.failures != failures_before:
            return
        skip_s = min(LONGEST_SKIP_S, FIRST_SKIP_S * 2.0**engine.failures)
        level = logging.DEBUG if engine.failures else logging.WARNING
        _log.log(level, "%s: not asked to tokenize for %g s: %s", engine.source.name, skip_s, why)
        engine.failures += 1
        engine.skipped_until_s = self._clock_s() + skip_s
