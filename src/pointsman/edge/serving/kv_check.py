"""KvCheck: has every engine that joins with KV events checked, and a faulty one again until it agrees.

Finds at registration what otherwise shows only as hits that never come: another tokenizer or chat template, another
block size, events that go elsewhere, a prefix cache that is off.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pointsman.core.ledger.events import KvChecked, KvFeedState
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.worker import WorkerId, worker_id
from pointsman.edge.cluster.kv_source import sends_kv_events
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.prompts.encoder import NoPrompts, PromptEncoder
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.kv_probe import EVENTS_LIMIT_S, CheckedEngine, KvProbe, UndecidedError
from pointsman.edge.serving.tasks import OwnedTasks

_log = logging.getLogger("pointsman.serving")

AT_ONCE = 8
"""Engines that are probed at the same time: a fleet that starts is not one burst of prompts."""


@dataclass(frozen=True, slots=True)
class CheckTiming:
    """How long a check waits for what."""

    idle_s: float = 3.0
    """A feed that follows an idle engine is not in order before the first event; the check's own prompt brings one."""
    patience_s: float = 60.0
    """After this, a line in the log says what a check waits for."""
    answer_s: float = 60.0
    """For a busy engine."""
    events_s: float = EVENTS_LIMIT_S
    again_s: float = 60.0
    """Until the next check of an engine that does not agree, twice as long each time."""
    longest_again_s: float = 600.0
    poll_s: float = 0.05
    longest_poll_s: float = 2.0


def _nonce() -> str:
    return secrets.token_hex(8)


class KvCheck:
    """A FactsListener. `nonce` gives a text that no engine has seen."""

    def __init__(
        self,
        ledger: Ledger,
        encoder: PromptEncoder,
        calls: EngineCalls,
        emit: Callable[[KvChecked], None],
        clock: Clock,
        *,
        timing: CheckTiming | None = None,
        nonce: Callable[[], str] = _nonce,
    ) -> None:
        self._encoder = encoder
        self._calls = calls
        self._emit = emit
        self._clock = clock
        self._timing = timing or CheckTiming()
        self._probe = KvProbe(ledger, encoder, nonce, self._timing.events_s)
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._tasks = OwnedTasks()
        self._checks: dict[str, asyncio.Task[None]] = {}

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """Check it if something joined. Never asked are servers of the kind `openai`, and engines of halves only."""
        if not joined:
            return
        self.engine_left(source)
        models = source.models or facts.models
        halves = facts.kv is not None and not facts.kv.alone
        if facts.kind == "openai" or halves or not models or not sends_kv_events(source, facts):
            return
        engine = CheckedEngine(
            name=source.name,
            workers=tuple(worker_id(source.name, rank) for rank in facts.ranks),
            model=next((model for model in models if model not in facts.lora), models[0]),
            http=self._calls.to(source, self._timing.answer_s),
            facts=facts,
        )
        self._checks[source.name] = self._tasks.start(self._check(engine), f"check of the KV events of {source.name}")

    def engine_left(self, source: WorkerSource) -> None:
        """A check under way ends."""
        task = self._checks.pop(source.name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End all checks."""
        await self._tasks.close()

    async def _check(self, engine: CheckedEngine) -> None:
        """Until it agrees. A verdict stands until there is another one."""
        told = ""
        pause_s = self._timing.again_s
        while True:
            await self._ready(engine)
            try:
                async with self._turn:
                    fault = await self._probe.fault(engine)
            except UndecidedError as error:
                said = f"its KV events could not be checked: {error}"
            else:
                self._tell(engine, fault)
                if fault is None:
                    _log.info("%s: KV events checked: its tokens and blocks are those of the router", engine.name)
                    return
                said = f"what it holds can't be looked up exactly: {fault}"
            _log.log(logging.DEBUG if said == told else logging.WARNING, "%s: %s", engine.name, said)
            told = said
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._timing.longest_again_s)

    def _tell(self, engine: CheckedEngine, fault: str | None) -> None:
        for worker in self._probe.views(engine):
            self._emit(KvChecked(worker, self._clock(), fault))

    async def _ready(self, engine: CheckedEngine) -> None:
        """Waits for the tokenizer and the feeds."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        connected_s: float | None = None
        poll_s = self._timing.poll_s
        told = False
        while True:
            states = {view.state for view in self._probe.views(engine, self._timing.poll_s).values()}
            now_s = loop.time()
            if connected_s is None and states - {KvFeedState.OFF}:
                connected_s = now_s
            idle = connected_s is not None and now_s >= connected_s + self._timing.idle_s
            missing = self._missing(engine, states, idle=idle)
            if not missing:
                return
            if not told and now_s >= began_s + self._timing.patience_s:
                told = True
                _log.warning("%s: its KV events are not checked yet: %s", engine.name, missing)
            await asyncio.sleep(poll_s)
            poll_s = min(1.2 * poll_s, self._timing.longest_poll_s)

    def _missing(self, engine: CheckedEngine, states: set[KvFeedState], *, idle: bool) -> str:
        found = self._encoder.source(engine.model)
        if found is None or isinstance(found, NoPrompts):
            return f"there is no tokenizer for {engine.model}" + ("" if found is None else f": {found.why}")
        if states <= {KvFeedState.OFF}:
            return "no feed of its KV events is connected"
        in_order = states <= {KvFeedState.COMPLETE, KvFeedState.PARTIAL}
        return "" if in_order or idle else "the feed of its KV events is not in order"
