"""WorkerSource: an engine as the configuration names it, before anybody asked it what it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pointsman.core.model.errors import ConfigError
from pointsman.core.model.kv_shape import off
from pointsman.core.model.worker import Role, WorkerSpec, worker_id
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.execution_group import KvEventEndpoints
from pointsman.edge.configuration.metrics_url import MetricsUrl
from pointsman.edge.configuration.tls import EngineTls
from pointsman.edge.engines.detect import adapter_of
from pointsman.edge.engines.facts import EngineFacts

NO_HOST = ("none", "null", "undefined")
"""What stands for a host where a program wrote down an address that it did not have."""
_DEFAULT_PORT = {"http": ":80", "https": ":443"}
_MOST = 10**12
"""Of anything that an engine says that it has; sums of such numbers are kept in 64 bits."""


@dataclass(frozen=True, slots=True)
class WorkerSource:
    """What is said of an engine. `None`: ask the engine. What is said here wins over what the engine says."""

    name: str
    url: str
    """Base URL, `http://host:port` or `https://…`."""
    role: Role = Role.BOTH
    gpu_count: int = 1
    max_batch_size: int | None = None
    queue_depth_threshold: int | None = None
    models: tuple[str, ...] | None = None
    kind: str | None = None
    kv_capacity_tokens: int | None = None
    kv_events: KvEventEndpoints | None = None
    profile: str | None = None
    """Name of the profile whose step times it is thought to have."""
    weight: float = 1.0
    max_in_flight: int | None = None
    topology_distance: int = 0
    gpu_metrics_url: MetricsUrl | None = None
    """Page that tells how busy its GPUs are."""
    gpus: tuple[str, ...] | None = None
    """Those of the page that are its own; None: all."""
    tls: EngineTls | None = None
    """How it is checked, and what it is shown, instead of what holds for all."""
    api_key: str | None = field(default=None, repr=False)
    """The engine's own key; goes with every call to it and never into a log."""
    draining: str | None = None
    """Why it shall get no new work, as its record says."""
    place: tuple[str, ...] = ()
    """Where it is, from near to far; an empty name is an unknown one."""
    moves_kv: bool = True
    """False: it is never part of a transfer of KV."""
    cache_transport: str | None = None
    """By what it passes KV on; None: what the engine tells."""

    def spec(self, facts: EngineFacts, rank: int) -> WorkerSpec:
        """The worker that one rank is."""
        models = self.models or facts.models
        return WorkerSpec(
            id=worker_id(self.name, rank),
            url=self.url,
            kind=facts.kind,
            models=models,
            rank=rank,
            role=facts.role or self.role,
            gpu_count=self.gpu_count,
            kv_capacity_tokens=self.kv_capacity_tokens or _believed(facts.kv_capacity_tokens),
            block_size_tokens=_believed(facts.block_size_tokens),
            max_context_tokens=_believed(facts.max_context_tokens),
            max_batch_size=self.max_batch_size or _believed(facts.max_batch),
            queue_depth_threshold=self.queue_depth_threshold,
            weight=self.weight,
            max_in_flight=self.max_in_flight,
            adapters=tuple(name for name in models if name in facts.lora),
            topology_distance=self.topology_distance,
            rank_header=facts.capabilities.rank_header if len(facts.ranks) > 1 else None,
            profile=self.profile,
            migration=facts.capabilities.migration,
            tokenizer=facts.tokenizer,
            stream_usage=facts.capabilities.stream_usage is not False,
            kv=facts.kv if self.moves_kv or facts.kv is None else off(facts.kv),
            place=self.place,
        )


def _believed(number: int | None) -> int | None:
    """What an engine says of itself; None: nothing that can be."""
    return number if number is not None and 0 < number <= _MOST else None


def checked(sources: Iterable[WorkerSource]) -> tuple[WorkerSource, ...]:
    """The same sources with clean URLs. Raises ConfigError for an address, name or kind that can't be used."""
    clean: list[WorkerSource] = []
    for source in sources:
        if not source.name or "/" in source.name:
            raise ConfigError(f"engine name {source.name!r}: use a name that is not empty and has no slash")
        if source.kind is not None:
            adapter_of(source.kind)
        _check_url(source.url, source.name)
        clean.append(source)
    _refuse_twice("name", [source.name for source in clean])
    _refuse_twice("URL", [same_url(source.url) for source in clean])
    return tuple(clean)


def same_url(url: str) -> str:
    """The same text for URLs that mean the same."""
    text = url.rstrip("/").lower()
    scheme = text.partition("://")[0]
    return text.removesuffix(_DEFAULT_PORT[scheme]) if scheme in _DEFAULT_PORT else text


def _check_url(url: object, name: str) -> None:
    try:
        parsed = EngineUrl.parse(url)
    except ValueError as error:
        raise ConfigError(f"engine {name!r}: URL {url!r} cannot be used, expected {error}") from None
    host = parsed.host_and_port.rpartition(":")[0]
    if host in NO_HOST:
        raise ConfigError(f"engine {name!r}: URL {url!r} has no real host; whoever wrote it had no address yet")


def _refuse_twice(what: str, values: Sequence[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ConfigError(f"two engines have the {what} {value!r}; name each engine once")
        seen.add(value)
