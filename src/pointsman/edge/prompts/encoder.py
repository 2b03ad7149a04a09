"""PromptEncoder: token ids for the requests of all models, at once where that is cheap, otherwise in a thread."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.prompts.errors import QUOTES_THE_REQUEST, NotTokenizable, Reason
from pointsman.edge.prompts.local_prompts import Body, EncodedPrompt, LocalPrompts, Piecework, prompt_size_bytes
from pointsman.edge.prompts.meter import Meter, OverBudget
from pointsman.edge.prompts.worker_pool import WorkerPool

_log = logging.getLogger("pointsman.prompts")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """Bounds. A step is a pass of a loop or a call in a template, well under a microsecond."""

    inline_characters: int = 4096
    """New text up to here is tokenized on the event loop: 1.2 ms. A thread costs 0.3 ms more, in twice the time."""
    inline_bytes: int = 32 * 1024
    """Bodies up to here are rendered on the event loop."""
    inline_steps: int = 20_000
    max_bytes: int = 8 * 1024 * 1024
    """Larger prompts are not tokenized."""
    max_steps: int = 2_000_000
    max_characters: int = 16 * 1024 * 1024
    limit_s: float = 2.0
    """Longer than this nobody waits for token ids."""
    threads: int = 2
    max_waiting_jobs: int = 256
    max_waiting_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NotEncoded:
    """A prompt that gets text blocks instead of token blocks."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class NoPrompts:
    """A model whose prompts nobody tokenizes."""

    why: str


PromptSource = LocalPrompts | EnginePrompts | NoPrompts
Outcome = EncodedPrompt | NotEncoded


@dataclass(slots=True)
class EncoderCounts:
    """Since the start."""

    inline: int = 0
    pooled: int = 0
    by_engine: int = 0
    partial: int = 0
    failed: Counter[Reason] = field(default_factory=Counter)


class Pending:
    """A prompt whose token ids take a while. Await `outcome()` once, or drop it: nothing has begun before."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[None, None, Outcome]]) -> None:
        self._begin = begin

    async def outcome(self) -> Outcome:
        """Never raises but when it is cancelled."""
        return await self._begin()


class PromptEncoder:
    """The room's face. Belongs to one event loop."""

    def __init__(self, settings: EncoderSettings | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.counts = EncoderCounts()
        self._settings = settings or EncoderSettings()
        self._clock_s = clock_s
        self._sources: dict[str, PromptSource] = {}
        self._pool = WorkerPool(
            self._settings.threads, self._settings.max_waiting_jobs, self._settings.max_waiting_bytes
        )

    def register(self, model: str, source: PromptSource) -> None:
        """From now on, prompts of a model are encoded by `source`; it replaces what was there."""
        if isinstance(source, NoPrompts):
            _log.warning("prompts of %s are not tokenized, text blocks are used: %s", model, source.why)
        elif isinstance(source, EnginePrompts):
            _log.warning("prompts of %s: no tokenizer here, its engine is asked for each plain prompt", model)
        self._sources[model] = source

    def forget(self, model: str) -> None:
        """The model is gone."""
        self._sources.pop(model, None)

    def source(self, model: str) -> PromptSource | None:
        """What a model was registered with."""
        return self._sources.get(model)

    def close(self) -> None:
        """No more prompts are taken by the threads."""
        self._pool.close()

    async def encode(self, model: str, body: Body) -> Outcome:
        """Token ids, or why there are none."""
        found = self.encode_now(model, body)
        return await found.outcome() if isinstance(found, Pending) else found

    def encode_now(self, model: str, body: Body) -> Outcome | Pending:
        """The same without waiting, where it takes a millisecond at most; otherwise Pending."""
        try:
            return self._encode_now(self._sources.get(model), body)
        except NotTokenizable as error:
            return self._failed(error)
        except Exception as error:
            return self._fault(error)

    async def beside(self, job: Callable[[], _T], size_bytes: int) -> _T | NotEncoded:
        """Other work on a prompt of this size, in one of the threads and under the bounds of the prompts."""
        try:
            return await self._pool.result(self._pool.submit(job, size_bytes), self._settings.limit_s)
        except NotTokenizable as error:
            return self._failed(error)
        except Exception as error:
            return self._fault(error)

    def _encode_now(self, source: PromptSource | None, body: Body) -> Outcome | Pending:
        if source is None or isinstance(source, NoPrompts):
            raise NotTokenizable(Reason.NO_TOKENIZER, "the model has no tokenizer" if source is None else source.why)
        settings = self._settings
        size_bytes = prompt_size_bytes(body)
        if size_bytes > settings.max_bytes:
            raise NotTokenizable(Reason.TOO_LARGE, f"the prompt has {size_bytes} bytes, more than {settings.max_bytes}")
        if isinstance(source, EnginePrompts):
            return Pending(lambda: self._by_engine(source, body))
        if size_bytes > settings.inline_bytes:
            return self._pending(lambda: self._whole(source, body), size_bytes)
        try:
            work = source.prepare(body, Meter(settings.inline_steps, settings.max_characters))
        except OverBudget:
            return self._pending(lambda: self._whole(source, body), size_bytes)
        if isinstance(work, Piecework) and work.missing_characters > settings.inline_characters:
            return self._pending(partial(source.finish, work), size_bytes)
        self.counts.inline += 1
        return self._counted(source.finish(work) if isinstance(work, Piecework) else work)

    def _whole(self, source: LocalPrompts, body: Body) -> EncodedPrompt:
        """In a thread. The meter's clock ends a rendering that nobody waits for any more."""
        settings = self._settings
        deadline_s = self._clock_s() + settings.limit_s
        try:
            work = source.prepare(body, Meter(settings.max_steps, settings.max_characters, deadline_s, self._clock_s))
        except OverBudget as error:
            raise NotTokenizable(Reason.TIMED_OUT, str(error)) from None
        return source.finish(work) if isinstance(work, Piecework) else work

    def _pending(self, job: Callable[[], EncodedPrompt], size_bytes: int) -> Pending:
        return Pending(lambda: self._pooled(job, size_bytes))

    async def _pooled(self, job: Callable[[], EncodedPrompt], size_bytes: int) -> Outcome:
        prompt = await self.beside(job, size_bytes)
        if isinstance(prompt, NotEncoded):
            return prompt
        self.counts.pooled += 1
        return self._counted(prompt)

    async def _by_engine(self, source: EnginePrompts, body: Body) -> Outcome:
        try:
            prompt = await source.encode(body)
        except NotTokenizable as error:
            return self._failed(error)
        self.counts.by_engine += 1
        return self._counted(prompt)

    def _counted(self, prompt: EncodedPrompt) -> EncodedPrompt:
        self.counts.partial += not prompt.complete
        return prompt

    def _failed(self, error: NotTokenizable) -> NotEncoded:
        """One log line a reason, later ones only for those who look: a client can cause them at will."""
        self.counts.failed[error.reason] += 1
        level = logging.WARNING if self.counts.failed[error.reason] == 1 else logging.DEBUG
        # What these say quotes the request, whose text belongs into no log.
        detail = "" if error.reason in QUOTES_THE_REQUEST else f": {error}"
        _log.log(level, "a prompt is not tokenized, text blocks are used (%s)%s", error.reason, detail)
        return NotEncoded(error.reason, str(error))

    def _fault(self, error: Exception) -> NotEncoded:
        """A request can be answered without token ids, so a fault of ours must not cost it; it must be seen, though."""
        self.counts.failed[Reason.FAULT] += 1
        _log.error("a prompt is not tokenized, text blocks are used: a fault in here", exc_info=error)
        return NotEncoded(Reason.FAULT, repr(error))
