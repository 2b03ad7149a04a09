"""Everything that one embedded engine consists of, apart from HTTP."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from pointsman.core.engine_model.events import KvEvent
from pointsman.core.model.errors import ConfigError
from pointsman.edge.engines.embedded.embedded_specs import EmbeddedSpecs
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.loaded_model import LoadedModel
from pointsman.edge.engines.embedded.runner import EmbeddedRunner
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from pointsman.edge.engines.openai_server.api_routes import VLLM_VERSION
from pointsman.edge.engines.openai_server.event_publisher import EventPublisher
from pointsman.edge.engines.openai_server.json_texts import JsonTexts
from pointsman.edge.engines.openai_server.metrics import ServerMetrics, busy_gauge
from pointsman.edge.engines.openai_server.names import ServedNames
from pointsman.edge.engines.openai_server.prompt_work import PromptWork
from pointsman.edge.engines.openai_server.spec import SpecMaker
from pointsman.edge.engines.openai_server.text import ServedText

BUSY = "pointsman_embedded_busy_ratio"
LONG_PROMPT_BYTES = 4096
"""A tokenizer is through with as much in some 10 ms at worst, as long as a step or two of others."""


class EmbeddedState:
    """The parts of an engine whose model is loaded. Make it on the event loop. Raises ConfigError."""

    version = f"{VLLM_VERSION}+embedded"

    def __init__(self, settings: EmbeddedSettings, model: LoadedModel, publisher: EventPublisher) -> None:
        self.settings = settings
        self.model = model
        self.names = ServedNames(settings.served_name or model.name, root=model.root)
        self.text: ServedText = model.text
        self.json_texts = JsonTexts()
        self.prompt_work = PromptWork(LONG_PROMPT_BYTES)
        self.transfer_metrics: Callable[[], Iterable[Metric]] | None = None
        """Of KV that moves, if any does."""
        self.unready = False
        """`/health` says 503."""
        self.refusing = False
        """Requests for tokens get 503: the engine is about to stop."""
        self.publisher = publisher
        self.config = settings.engine_config(model.config)
        chance = random.Random(settings.seed)
        self.specs: SpecMaker = EmbeddedSpecs(
            self.names,
            self.config.max_model_len,
            model.text,
            defaults=model.defaults,
            draw_seed=lambda: chance.getrandbits(63),
        )
        try:
            engine = EmbeddedEngine(self.config, model.decoder, transfers=settings.transfer is not None)
        except (MemoryError, ValueError, OverflowError, OSError) as error:
            raise ConfigError(
                f"num_blocks is {self.config.num_blocks}: more than this machine has; lower it"
            ) from error
        self.metrics = ServerMetrics(time.time())
        self.runner = EmbeddedRunner(engine, self._publish, self.metrics)

    @property
    def ready(self) -> bool:
        """`/health` is 200."""
        return not (self.unready or self.runner.broken)

    def more_metrics(self) -> Iterable[Metric]:
        """How busy it is, and what is told of KV that moves."""
        yield busy_gauge(BUSY, self.names, self.settings.dp_rank, self.runner.busy)
        if self.transfer_metrics is not None:
            yield from self.transfer_metrics()

    def _publish(self, events: list[KvEvent]) -> None:
        self.publisher.publish(events)
