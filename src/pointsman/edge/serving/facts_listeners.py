"""FactsListeners: several that hear of engines, as one."""

from __future__ import annotations

from collections.abc import Collection

from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.engine_watch import FactsListener
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts


class FactsListeners:
    """Tells each of them, in order."""

    def __init__(self, *listeners: FactsListener) -> None:
        self._listeners = listeners

    def engine_known(self, source: WorkerSource, facts: EngineFacts, joined: Collection[WorkerId]) -> None:
        """An engine said what it is."""
        for listener in self._listeners:
            listener.engine_known(source, facts, joined)

    def engine_left(self, source: WorkerSource) -> None:
        """An engine is gone."""
        for listener in self._listeners:
            listener.engine_left(source)
