"""KV events with faults: batches lost, doubled or out of order."""

from __future__ import annotations

import random

from pointsman.edge.engines.openai_server.event_publisher import EventPublisher, EventSettings
from pointsman.edge.engines.sim.faults import EventFaults


class FaultyPublisher(EventPublisher):
    """Publishes KV events as vLLM does, as far as the faults let it."""

    def __init__(self, settings: EventSettings, seed: int) -> None:
        super().__init__(settings)
        self._faults = EventFaults()
        self._random = random.Random(seed)
        self._held: list[bytes] | None = None

    def restart(self) -> None:
        """Begin again, as a new process would."""
        super().restart()
        self._held = None

    def set_faults(self, faults: EventFaults) -> None:
        """Replace the faults; a batch that was held back goes out."""
        self._faults = faults
        self._release()

    def emit(self, frames: list[bytes]) -> None:
        """Send a message, lose it, or hold it back until the next one is out."""
        faults, draw = self._faults, self._random.random
        if faults.stop or (faults.drop and draw() < faults.drop):
            return
        if self._held is None and faults.reorder and draw() < faults.reorder:
            self._held = frames
            return
        super().emit(frames)
        if faults.duplicate and draw() < faults.duplicate:
            super().emit(frames)
        self._release()

    @property
    def answers_replays(self) -> bool:
        """Unless everything is stopped."""
        return not self._faults.stop

    def _release(self) -> None:
        if self._held is not None:
            super().emit(self._held)
            self._held = None
