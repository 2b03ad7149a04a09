"""Setup: the fleet that a simulation runs, and what it does not leave to chance."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.engine_model.config import TierConfig
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.slo import Slo
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.core.timing.links import Link
from pointsman.core.timing.profile import Profile

BLOCK_TOKENS_WITHOUT_IDS = 16
"""Block size for traces that name no blocks, and so none to keep."""

_NOT_NEGATIVE = (
    "front_end_ms",
    "front_end_lag_ms",
    "kv_event_delay_ms",
    "metrics_every_ms",
    "startup_ms",
    "retries",
    "step_noise",
    "prefix_ttl_ms",
    "kv_transfer_max_bytes",
)


class RouteKey(enum.StrEnum):
    """What of a trace's request is its route key."""

    SESSION = "session"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers that are alike."""

    profile: Profile
    count: int
    role: Role = Role.BOTH
    slow: float = 1.0
    """All its steps take so many times what the profile says."""
    started_ms: float | None = None
    """When its processes are started: workers join `Setup.startup_ms` later. None: they are there from the start."""
    models: tuple[str, ...] = ()
    """Models that it serves; empty: all of the trace's."""
    weight: float = 1.0
    """How much each of them should get, beside 1 of an ordinary one."""
    max_in_flight: int | None = None
    """Most sequences of ours at once at each of them."""
    topology_distance: int = 0
    """Levels of the topology at which they are not where the front end is."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's process dies."""

    worker: int
    """Number of the worker, counted through the groups."""
    at_ms: float
    back_after_ms: float | None = None
    """When it is started again, after its death; it joins `Setup.startup_ms` later with an empty cache. None: never."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A worker's steps take so many times what they took at the start, from the next one on. Nobody tells anybody."""

    worker: int
    at_ms: float
    factor: float
    """1: it is as fast again as it was."""


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker gets no new requests from then on."""

    worker: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class RoleChange:
    """A worker computes other stages from then on; what it has ends as it began."""

    worker: int
    at_ms: float
    role: Role


@dataclass(frozen=True, slots=True)
class Setup:
    """Times in ms of the trace's clock. Raises ConfigError for what can't be."""

    groups: tuple[WorkerGroup, ...]
    block_tokens: int | None = None
    """KV block size of all engines; None: the trace's, or 16 where it names no blocks."""
    max_num_seqs: int = 256
    """Sequences that an engine computes side by side."""
    max_batched_tokens: int = 8192
    """Token budget of one step of an engine."""
    max_context_tokens: int | None = None
    """Prompt and answer together; None: what fits into the KV cache."""
    prefix_caching: bool = True
    tiers: tuple[TierConfig, ...] = ()
    """Of each engine below the GPU, nearest first."""
    kv_transfer: TransferMode | None = None
    """When KV moves between workers; None: automatically where some are for prefill only, else never."""
    kv_transfer_max_bytes: int = 0
    """Larger caches are not moved; 0: no limit."""
    fallback_to_local: bool = True
    """What could not be moved is computed where the request is answered; else the request fails."""
    pulls: bool = True
    """Engines can fetch the beginning of a prompt from whoever holds it, where KV moves at all."""
    link: Link | None = None
    """Over which KV moves between workers, both ways of each worker; None: the network that is usual for its GPUs."""
    links_between: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    """Over which KV moves between two workers, by number (from, to), where that is another link than `link`: where they
    are close to each other or far apart."""
    believed_speed: float | None = 1.0
    """Links were measured before, and found to be so many times as fast as they are; None: nobody measured them."""
    front_end_ms: float | None = None
    """Fixed time of a request outside of engines, spent before its decision; None: the longest of the profiles'."""
    front_ends: int = 1
    """That share the requests, in turn."""
    front_end_lag_ms: float | None = 20.0
    """Until the others know what one of several did; None: they never do."""
    kv_events: bool = True
    """Engines announce their blocks, so that the ledger knows exactly what they hold; else it knows what was sent."""
    kv_event_delay_ms: float = 1.0
    """From the end of the step that stored or evicted a block until the ledger hears of it."""
    metrics_every_ms: float = 5_000.0
    """How often the load of each engine is read; 0: before each decision."""
    startup_ms: float = 0.0
    """From the start of a worker's process until it takes requests."""
    failures: tuple[Failure, ...] = ()
    drains: tuple[Drain, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    role_changes: tuple[RoleChange, ...] = ()
    guards: Guards = NO_GUARDS
    """Limits beyond which workers are excluded."""
    slo: Slo | None = None
    """What all requests are promised."""
    slo_of_tenants: Mapping[str, Slo] = field(default_factory=dict)
    """What those of some tenants are promised instead."""
    queue_limit: int | None = None
    """Requests waiting at an engine, as last read, from which on it gets no more."""
    retries: int = 0
    """How often a request is tried again that lost its worker before its first token. The live front end never does."""
    step_noise: float = 0.0
    """Spread of step times: standard deviation of their logarithm, drawn for each step. Their mean stays what it is."""
    recorded_times: bool = False
    """Requests that wait for an answer in the trace come when they did, whenever that answer comes."""
    route_key: RouteKey | None = RouteKey.SESSION
    learn_times: bool = False
    """Policies get step times as a front end learns them from what it sees, beginning with the profiles; else they get
    those of the profiles. Learning costs time, a tenth or more of a simulation."""
    prefix_ttl_ms: float = 3_600_000.0
    """How long what was sent to a worker without KV events counts as held there."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError("a simulation needs at least one worker")
        if self.front_ends < 1:
            raise ConfigError(f"front_ends must be at least 1, not {self.front_ends}")
        for group in self.groups:
            if group.count < 1:
                raise ConfigError(f"a group of {group.profile.name} needs at least one worker, not {group.count}")
            if not 0 < group.slow < math.inf:
                raise ConfigError(f"slow must be above 0, not {group.slow} ({group.profile.name})")
            if not 0 < group.weight < math.inf:
                raise ConfigError(f"weight must be above 0, not {group.weight} ({group.profile.name})")
            if group.max_in_flight is not None and group.max_in_flight < 1:
                raise ConfigError(f"max_in_flight must be at least 1, not {group.max_in_flight} ({group.profile.name})")
            _check_time("started_ms of a group", group.started_ms)
        for name in ("block_tokens", "max_num_seqs", "max_batched_tokens", "max_context_tokens", "queue_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be 0 or more, not {value}")
        for failure in self.failures:
            self._check_number(failure.worker)
            _check_time("at_ms of a failure", failure.at_ms)
            _check_time("back_after_ms of a failure", failure.back_after_ms)
        for pair in self.links_between:
            for worker in pair:
                self._check_number(worker)
        if self.believed_speed is not None and not 0 < self.believed_speed < math.inf:
            raise ConfigError(f"believed_speed must be above 0, not {self.believed_speed}")
        for change in self.role_changes:
            self._check_number(change.worker)
            _check_time("at_ms of a role change", change.at_ms)
        for drain in self.drains:
            self._check_number(drain.worker)
            _check_time("at_ms of a drain", drain.at_ms)
        for slowdown in self.slowdowns:
            self._check_number(slowdown.worker)
            _check_time("at_ms of a slowdown", slowdown.at_ms)
            if not 0 < slowdown.factor < math.inf:
                raise ConfigError(f"the factor of a slowdown must be above 0, not {slowdown.factor}")

    def _check_number(self, worker: int) -> None:
        if not 0 <= worker < self.workers:
            raise ConfigError(f"there is no worker {worker}: the {self.workers} workers are numbered from 0")

    @property
    def workers(self) -> int:
        """Workers in all groups."""
        return sum(group.count for group in self.groups)

    @property
    def transfer(self) -> TransferRules:
        """When KV moves, as the front end is told."""
        mode = self.kv_transfer
        if mode is None:
            apart = any(group.role is Role.PREFILL for group in self.groups)
            mode = TransferMode.AUTO if apart or self.role_changes else TransferMode.OFF
        return TransferRules(mode, self.kv_transfer_max_bytes, self.fallback_to_local)

    @property
    def moves_kv(self) -> bool:
        """Whether it may move at all."""
        return self.transfer.mode is not TransferMode.OFF

    @property
    def overhead_ms(self) -> float:
        """Fixed time of each request outside of engines."""
        if self.front_end_ms is not None:
            return self.front_end_ms
        return max(group.profile.overhead_ms for group in self.groups)

    def blocks_for(self, trace_block_tokens: int) -> int:
        """Tokens a KV block, for a trace with blocks of that size (0: it has none). Raises ConfigError."""
        wanted = self.block_tokens
        if not trace_block_tokens:
            return wanted or BLOCK_TOKENS_WITHOUT_IDS
        if wanted is None:
            return trace_block_tokens
        if wanted % trace_block_tokens and trace_block_tokens % wanted:
            raise ConfigError(
                f"block_tokens {wanted} does not go with the trace's blocks of {trace_block_tokens} tokens: "
                "one must be a multiple of the other"
            )
        return wanted


def _check_time(what: str, value_ms: float | None) -> None:
    if value_ms is not None and not 0 <= value_ms < math.inf:
        raise ConfigError(f"{what} must be 0 or more, not {value_ms}")
