"""EngineLinks: how to reach the worker that a plan names."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.edge.wire.http1_client import Origin


@dataclass(frozen=True, slots=True)
class EngineLink:
    """Address and key of one worker's engine."""

    origin: Origin
    api_key: str | None
    stream_usage: bool
    """It understands `stream_options.include_usage`."""


class EngineLinks:
    """Links by worker. A worker that left is forgotten only when a later one takes its id: attempts may still run."""

    def __init__(self) -> None:
        self._links: dict[WorkerId, EngineLink] = {}

    def joined(self, spec: WorkerSpec, api_key: str | None) -> None:
        """A worker joined, perhaps at another address than before."""
        self._links[spec.id] = EngineLink(Origin.parse(spec.url), api_key, spec.stream_usage)

    def of(self, worker: WorkerId) -> EngineLink:
        """The link of a worker that joined at some time."""
        return self._links[worker]
