"""EngineLinks: how to reach the worker that a plan names."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.migration import Mechanism
from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.edge.wire.http1_client import Origin


@dataclass(frozen=True, slots=True)
class EngineLink:
    """Address and key of one worker's engine."""

    origin: Origin
    api_key: str | None
    stream_usage: bool
    """It understands `stream_options.include_usage`."""
    rank: tuple[bytes, bytes] | None
    """Header that chooses the rank; None where the engine has one only."""
    kind: str = "openai"
    tokenizer: str | None = None
    migration: Mechanism = Mechanism.REPLAY
    max_context_tokens: int | None = None

    def continues(self, other: EngineLink) -> bool:
        """Whether it can go on with what the other one began: the same kind of engine with the same model."""
        if self.kind != other.kind or self.migration is not other.migration:
            return False
        return self.tokenizer is None or other.tokenizer is None or _name(self.tokenizer) == _name(other.tokenizer)


class EngineLinks:
    """Links by worker. A worker that left is forgotten only when a later one takes its id: attempts may still run."""

    def __init__(self) -> None:
        self._links: dict[WorkerId, EngineLink] = {}

    def joined(self, spec: WorkerSpec, api_key: str | None) -> None:
        """A worker joined or changed, perhaps with another address than before."""
        rank = None if spec.rank_header is None else (spec.rank_header.lower().encode(), b"%d" % spec.rank)
        self._links[spec.id] = EngineLink(
            Origin.parse(spec.url),
            api_key,
            spec.stream_usage,
            rank,
            spec.kind,
            spec.tokenizer,
            spec.migration,
            spec.max_context_tokens,
        )

    def workers(self) -> tuple[WorkerId, ...]:
        """All that joined at some time."""
        return tuple(self._links)

    def of(self, worker: WorkerId) -> EngineLink:
        """The link of a worker that joined at some time."""
        return self._links[worker]


def _name(tokenizer: str) -> str:
    """Hosts have one model in different directories; its name, or the hash of its revision, comes last."""
    return tokenizer.rstrip("/").rpartition("/")[2]
