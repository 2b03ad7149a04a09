"""Everything that one simulated engine consists of, apart from HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from pointsman.core.engine_model.events import KvEvent
from pointsman.edge.engines.openai_server.api_routes import VLLM_VERSION
from pointsman.edge.engines.openai_server.json_texts import JsonTexts
from pointsman.edge.engines.openai_server.metrics import ServerMetrics, busy_gauge
from pointsman.edge.engines.openai_server.names import ServedNames
from pointsman.edge.engines.openai_server.prompt_work import PromptWork
from pointsman.edge.engines.openai_server.spec import SpecMaker
from pointsman.edge.engines.openai_server.text import ServedText
from pointsman.edge.engines.sim.faults import Faults, FaultState
from pointsman.edge.engines.sim.faulty_publisher import FaultyPublisher
from pointsman.edge.engines.sim.runner import EngineRunner
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.sim.text import SimText
from pointsman.edge.engines.sim.tokenizer import SimTokenizer


class SimState:
    """The parts of an engine. `runner` and `metrics` are replaced by a restart."""

    version = f"{VLLM_VERSION}+sim"

    def __init__(self, settings: SimSettings, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self.settings = settings
        self._clock_s = clock_s
        tokenizer = SimTokenizer()
        self.text: ServedText = SimText(tokenizer)
        self.names = ServedNames(settings.model, settings.loras)
        self.json_texts = JsonTexts()
        self.prompt_work = PromptWork()  # its tokenizer is Python, which threads make no quicker
        self.faults = FaultState()
        self.unready = False
        """`/health` says 503."""
        self.refusing = False
        """Requests for tokens get 503: the engine is about to stop."""
        self.publisher = FaultyPublisher(settings.events(), settings.seed)
        self.config = settings.engine_config(tokenizer.output_ids)
        self.specs = SpecMaker(
            self.names, self.config.max_model_len, self.text, usual_tokens=settings.default_output_tokens
        )
        self.metrics = ServerMetrics(time.time())
        self.runner = self._new_runner()

    @property
    def ready(self) -> bool:
        """`/health` is 200: nobody drains it, and it is not told to say otherwise."""
        return not (self.unready or self.faults.active.unhealthy)

    def more_metrics(self) -> Iterable[Metric]:
        """How busy its GPU would be."""
        return (busy_gauge("pointsman_sim_busy_ratio", self.names, self.settings.dp_rank, self.runner.busy),)

    def set_faults(self, faults: Faults) -> None:
        """Replace the active faults."""
        self.faults.set(faults)
        self.publisher.set_faults(faults.events)
        self.runner.slow_factor = faults.slow_factor

    def restart(self) -> None:
        """Lose everything that a new process would not have; faults stay."""
        self.runner.stop()
        self.publisher.restart()
        self.metrics = ServerMetrics(time.time())
        self.runner = self._new_runner()
        self.runner.slow_factor = self.faults.active.slow_factor

    def _new_runner(self) -> EngineRunner:
        return EngineRunner(self.config, self.settings.speedup, self._publish, self.metrics, self._clock_s)

    def _publish(self, events: list[KvEvent]) -> None:
        self.publisher.publish(events)
