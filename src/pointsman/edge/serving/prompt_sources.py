"""PromptSources: gives the encoder a tokenizer for each model of which an engine sends KV events."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.kv_source import sends_kv_events
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.detect import adapter_of
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.prompts.conversation import Dialect
from pointsman.edge.prompts.encoder import NoPrompts, PromptEncoder, PromptSource
from pointsman.edge.prompts.engine_prompts import EnginePrompts, EngineTokenize
from pointsman.edge.prompts.errors import TokenizerFilesError
from pointsman.edge.prompts.local_prompts import load_local_prompts
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces, find_tokenizer
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.tasks import OwnedTasks

_log = logging.getLogger("pointsman.serving")

Prompt = str | Sequence[Mapping[str, object]]


class PromptSources:
    """A FactsListener. Looks, in this order, at what the configuration names, at what the engine says it loaded, at the
    model's own name; where none of them leads to files here, the engine itself is asked for each prompt.
    """

    def __init__(
        self, encoder: PromptEncoder, calls: EngineCalls, places: TokenizerPlaces, named: Mapping[str, str]
    ) -> None:
        self._encoder = encoder
        self._calls = calls
        self._places = places
        self._named = named
        self._looked_for: set[str] = set()
        self._adapters: set[str] = set()
        self._tasks = OwnedTasks()

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """An engine said what it is: tokenizers of models that are new are looked for, without anybody waiting."""
        self._adapters.update(facts.lora)
        if not sends_kv_events(source, facts):
            return
        new = [model for model in source.models or facts.models if model not in self._looked_for]
        if new:
            self._looked_for.update(new)
            self._tasks.start(self._register(new, source, facts), f"tokenizer of {new[0]}")

    def engine_left(self, source: WorkerSource) -> None:
        """Its models may be served by others: what was found stays."""

    def is_adapter(self, model: str) -> bool:
        """True for the name of a LoRA adapter: it is part of the block keys."""
        return model in self._adapters

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.close()

    async def _register(self, models: list[str], source: WorkerSource, facts: EngineFacts) -> None:
        found = await self._find(models, source, facts)
        for model in models:
            self._encoder.register(model, found)

    async def _find(self, models: list[str], source: WorkerSource, facts: EngineFacts) -> PromptSource:
        configured = [self._named[model] for model in models if model in self._named]
        places = configured or [place for place in (facts.tokenizer, *models) if place is not None]
        dialect = Dialect.SGLANG if facts.kind == "sglang" else Dialect.VLLM
        failures: list[str] = []
        for place in dict.fromkeys(places):
            try:
                files = await find_tokenizer(place, self._places)
                prompts = await load_local_prompts(files, dialect=dialect)
            except TokenizerFilesError as error:
                failures.append(str(error))
                continue
            _log.info("%s: prompts are tokenized as in %s (%s)", ", ".join(models), files.folder, files.origin)
            return prompts
        _log.warning("%s: no tokenizer: %s", ", ".join(models), "; ".join(failures) or "no place to look at")
        if facts.capabilities.tokenize:
            return EnginePrompts(self._ask(models[0], source, facts))
        return NoPrompts("its engine has no route that tokenizes, and no tokenizer was found here")

    def _ask(self, model: str, source: WorkerSource, facts: EngineFacts) -> EngineTokenize:
        adapter, http = adapter_of(facts.kind), self._calls.to(source)

        async def tokenize(prompt: Prompt) -> list[int] | None:
            return await adapter.tokenize(http, model, prompt)

        return tokenize
