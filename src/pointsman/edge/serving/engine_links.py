"""EngineLinks: how to reach the worker that a plan names."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.core.model.kv_shape import KvShape
from pointsman.core.model.migration import Mechanism
from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.edge.wire.http1_client import Origin


@dataclass(frozen=True, slots=True)
class EngineLink:
    """Address and key of one worker's engine."""

    origin: Origin
    api_key: str | None = field(repr=False)
    stream_usage: bool
    """It understands `stream_options.include_usage`."""
    rank: tuple[bytes, bytes] | None
    """Header that chooses the rank; None where the engine has one only."""
    kind: str = "openai"
    tokenizer: str | None = None
    migration: Mechanism = Mechanism.REPLAY
    max_context_tokens: int | None = None
    url: str = ""
    rank_number: int = 0
    kv: KvShape | None = None
    """How it passes KV on; None: not at all."""

    def continues(self, other: EngineLink) -> bool:
        """Whether it can go on with what the other one began: the same kind of engine with the same model."""
        if self.kind != other.kind or self.migration is not other.migration:
            return False
        return self.tokenizer is None or other.tokenizer is None or _name(self.tokenizer) == _name(other.tokenizer)


MOST_GONE = 1000
"""Workers that are remembered after they left: attempts there may still run. Fleets that scale have ever new names."""


class EngineLinks:
    """Links by worker, also of those that left lately."""

    def __init__(self) -> None:
        self._links: dict[WorkerId, EngineLink] = {}
        self._gone: dict[WorkerId, None] = {}
        """Oldest first."""
        self.halves: set[WorkerId] = set()
        """Those that serve nothing but halves of requests."""

    def joined(self, spec: WorkerSpec, api_key: str | None) -> None:
        """A worker joined or changed, perhaps with another address than before."""
        self._gone.pop(spec.id, None)
        if spec.kv is None or spec.kv.alone:
            self.halves.discard(spec.id)
        else:
            self.halves.add(spec.id)
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
            spec.url,
            spec.rank,
            spec.kv,
        )

    def left(self, worker: WorkerId) -> None:
        """It will be forgotten, once many others have left too."""
        self._gone.pop(worker, None)
        self._gone[worker] = None
        if len(self._gone) > MOST_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._links.pop(oldest, None)
            self.halves.discard(oldest)

    def of(self, worker: WorkerId) -> EngineLink:
        """The link of a worker that is there, or was until lately."""
        return self._links[worker]


def _name(tokenizer: str) -> str:
    """Hosts have one model in different directories; its name, or the hash of its revision, comes last."""
    return tokenizer.rstrip("/").rpartition("/")[2]
