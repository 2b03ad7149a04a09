"""Everything that one simulated engine consists of, apart from HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from pointsman.core.engine_model.events import KvEvent
from pointsman.edge.engines.sim.event_publisher import EventPublisher
from pointsman.edge.engines.sim.faults import Faults, FaultState
from pointsman.edge.engines.sim.metrics import SimMetrics
from pointsman.edge.engines.sim.runner import EngineRunner
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.sim.spec import SpecMaker
from pointsman.edge.engines.sim.stream_output import JsonTexts
from pointsman.edge.engines.sim.tokenizer import SimTokenizer


class SimState:
    """The parts of an engine. `runner` and `metrics` are replaced by a restart."""

    def __init__(self, settings: SimSettings, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self.settings = settings
        self._clock_s = clock_s
        self.tokenizer = SimTokenizer()
        self.json_texts = JsonTexts()
        self.faults = FaultState()
        self.unready = False
        """`/health` says 503."""
        self.refusing = False
        """Requests for tokens get 503: the engine is about to stop."""
        self.publisher = EventPublisher(settings)
        self.config = settings.engine_config(self.tokenizer.output_ids)
        self.specs = SpecMaker(settings, self.config.max_model_len, self.tokenizer)
        self.metrics = SimMetrics(time.time())
        self.runner = self._new_runner()

    def set_faults(self, faults: Faults) -> None:
        """Replace the active faults."""
        self.faults.set(faults)
        self.publisher.set_faults(faults.events)
        self.runner.slow_factor = faults.slow_factor

    def restart(self) -> None:
        """Lose everything that a new process would not have; faults stay."""
        self.runner.stop()
        self.publisher.restart()
        self.metrics = SimMetrics(time.time())
        self.runner = self._new_runner()
        self.runner.slow_factor = self.faults.active.slow_factor

    def _new_runner(self) -> EngineRunner:
        return EngineRunner(self.config, self.settings.speedup, self._publish, self.metrics, self._clock_s)

    def _publish(self, events: list[KvEvent]) -> None:
        self.publisher.publish(events)
