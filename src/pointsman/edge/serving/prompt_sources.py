"""PromptSources: gives the encoder a tokenizer for each model of which an engine sends KV events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.kv_source import sends_kv_events
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.encoder import NoPrompts, PromptEncoder, PromptSource
from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.local_prompts import LocalPrompts
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.tasks import OwnedTasks
from pointsman.edge.serving.tokenizer_lookup import TokenizerLookup
from pointsman.edge.serving.tokenizing_engines import TokenizingEngines

_log = logging.getLogger("pointsman.serving")

FIRST_PAUSE_S = 15.0
LONGEST_PAUSE_S = 600.0
"""A tokenizer that was not found is looked for again: the hub may be down just now, or a directory not mounted yet."""

_Place = tuple[str, Dialect]


@dataclass(frozen=True, slots=True)
class _Engine:
    """What an engine says that matters here."""

    models: tuple[str, ...]
    """Empty for one that sends no KV events."""
    adapters: frozenset[str]
    tokenizer: str | None
    kind: str
    tokenizes: bool

    def places(self, model: str, named: Mapping[str, str]) -> list[_Place]:
        """What the configuration names for the model, or else what the engine loaded, and the model's own name.

        An adapter's prompts are its base model's, and an engine with one model under several names has one tokenizer.
        """
        bases = [name for name in self.models if name not in self.adapters]
        same = [model, *bases] if model in self.adapters or self.kind in _ONE_MODEL else [model]
        configured = [named[name] for name in same if name in named][:1]
        loaded = [] if self.tokenizer is None else [self.tokenizer]
        dialect = Dialect.SGLANG if self.kind == "sglang" else Dialect.VLLM
        places = configured or [*loaded, *(name for name in same if name not in self.adapters)]
        return [(place, dialect) for place in dict.fromkeys(places)]


_ONE_MODEL = ("vllm", "sglang")


@dataclass(slots=True)
class _Search:
    """One model whose tokenizer is looked for. `news`: an engine says something of it that was not known."""

    task: asyncio.Task[None] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class PromptSources:
    """A FactsListener. Looks, in this order, at what the configuration names, at what the engine says it loaded, at the
    model's own name; where none of them leads to files here, engines are asked for each prompt until one does.
    """

    def __init__(
        self,
        encoder: PromptEncoder,
        calls: EngineCalls,
        places: TokenizerPlaces,
        named: Mapping[str, str],
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._encoder = encoder
        self._named = named
        self._first_pause_s = first_pause_s
        self._lookup = TokenizerLookup(places)
        self._asked = TokenizingEngines(calls)
        self._engines: dict[str, _Engine] = {}
        self._adapters: frozenset[str] = frozenset()
        self._searches: dict[str, _Search] = {}
        self._tasks = OwnedTasks()

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """An engine said what it is: tokenizers of models that are new are looked for, without anybody waiting."""
        models = tuple(source.models or facts.models) if sends_kv_events(source, facts) else ()
        tokenizes = bool(models and facts.capabilities.tokenize)
        if tokenizes:
            self._asked.known(source, facts, models)
        else:
            self._asked.left(source.name)
        engine = _Engine(models, frozenset(facts.lora), facts.tokenizer, facts.kind, tokenizes)
        if self._engines.get(source.name) != engine:
            self._engines[source.name] = engine
            self._changed()
            for model in models:
                self._search(model)

    def engine_left(self, source: WorkerSource) -> None:
        """Models that nobody else serves are forgotten, with what they keep in memory."""
        self._asked.left(source.name)
        if self._engines.pop(source.name, None) is not None:
            self._changed()

    def is_adapter(self, model: str) -> bool:
        """True for the name of a LoRA adapter: it is part of the block keys."""
        return model in self._adapters

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.close()

    # ---- which models there are

    def _changed(self) -> None:
        engines = self._engines.values()
        self._adapters = frozenset().union(*(engine.adapters for engine in engines))
        served = {model for engine in engines for model in engine.models}
        for model in self._searches.keys() - served:
            search = self._searches.pop(model)
            if search.task is not None:
                search.task.cancel()
            self._encoder.forget(model)

    def _search(self, model: str) -> None:
        """What an engine newly says may lead further than what was known. What was found stays."""
        search = self._searches.setdefault(model, _Search())
        search.news.set()
        if search.task is None:
            search.task = self._tasks.start(self._look(model, search.news), f"tokenizer of {model}")

    # ---- looking

    async def _look(self, model: str, news: asyncio.Event) -> None:
        """Until files are found here. Cancelled when the model is gone."""
        pause_s = self._first_pause_s
        told = ""
        while True:
            news.clear()
            found, failures = await self._find(model)
            if found is not None:
                self._encoder.register(model, found)
                return
            if failures != told:
                told = failures
                _log.warning("%s: no tokenizer: %s", model, failures)
            self._fall_back(model)
            try:
                async with asyncio.timeout(pause_s):
                    await news.wait()
                pause_s = self._first_pause_s
            except TimeoutError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _find(self, model: str) -> tuple[LocalPrompts | None, str]:
        """Or why there are none."""
        failures: list[str] = []
        for place, dialect in self._places(model):
            try:
                found = await self._lookup.find(place, dialect)
            except TokenizerFilesError as error:
                failures.append(str(error))
                continue
            except Exception as error:
                _log.exception("%s: the tokenizer in %s can't be used for a reason that nobody expected", model, place)
                failures.append(f"{place}: {error!r}")
                continue
            _log.info("%s: prompts are tokenized as in %s (%s)", model, found.files.folder, found.files.origin)
            return found.prompts, ""
        return None, "; ".join(dict.fromkeys(failures)) or "no place to look at"

    def _places(self, model: str) -> list[_Place]:
        """Of all engines that serve it, the one that came first goes first."""
        engines = [engine for engine in self._engines.values() if model in engine.models]
        return list(dict.fromkeys(place for engine in engines for place in engine.places(model, self._named)))

    def _fall_back(self, model: str) -> None:
        source: PromptSource
        if self._asked.can(model):
            source = EnginePrompts(self._asked.tokenize_of(model))
        else:
            source = NoPrompts("its engines have no route that tokenizes, and no tokenizer was found here")
        if type(self._encoder.source(model)) is not type(source):
            self._encoder.register(model, source)
