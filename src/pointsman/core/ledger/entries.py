"""What the ledger keeps of one worker and of one request in flight. Mutable, and nobody else's."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add

from pointsman.core.ledger.adapters import ResidentAdapters
from pointsman.core.ledger.drift import Drift
from pointsman.core.ledger.faults import FaultTally
from pointsman.core.ledger.health.health import Health
from pointsman.core.ledger.output_lengths import ExpectedLength
from pointsman.core.ledger.watch import Watch
from pointsman.core.model.replica import NO_SHARE, WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId, WorkerSpec


@dataclass(slots=True)
class Totals:
    """Counts that only grow, of one worker or of the fleet."""

    dispatched: int = 0
    finished: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0
    attempts_failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    predicted_cached_tokens: int = 0
    """Thought cached, over finished requests whose engine reported what was."""
    reported_cached_tokens: int = 0
    reported_prompt_tokens: int = 0
    """Prompt tokens of the requests whose engine reported cached tokens."""


@dataclass(slots=True)
class WorkerEntry:
    """One incarnation of a worker: when it leaves and comes back under its id, that is another entry."""

    spec: WorkerSpec
    slot: int
    health: Health = field(default_factory=Health)
    totals: Totals = field(default_factory=Totals)
    faults: FaultTally = field(default_factory=FaultTally)
    drift: Drift = field(default_factory=Drift)
    flights: dict[str, Flight] = field(default_factory=dict)
    """Requests that are there."""
    draining: str | None = None
    was_ready: bool = False
    """Its process could be used before."""
    gone: bool = False
    kv_use: float | None = None
    metrics_ms: float | None = None
    gpu_ms: float | None = None
    """When it was last known how busy its GPUs are; None: it is not."""
    gpu_memory: float | None = None
    """Share of its GPUs' memory that is used; None: nobody says."""
    adapters: ResidentAdapters = field(default_factory=ResidentAdapters)
    watch: Watch | None = None
    """What its step times are learned from; None: nobody learns, or it is gone."""
    worker_class: str = ""
    foreign_before: int | None = None
    """Requests of others at the reading before the last."""
    others: WorkerShare = NO_SHARE
    """What other front ends of the fleet have there, as they told; due times are on our clock."""
    guessed: WorkerShare = NO_SHARE
    """What they are sending there at this moment, as far as one can guess."""

    @property
    def not_ours(self) -> WorkerShare:
        """Of its numbers what other front ends have there, told and guessed."""
        return WorkerShare._make(map(add, self.others, self.guessed))

    @property
    def in_flight(self) -> int:
        """Requests that are there."""
        return len(self.flights)

    @property
    def id(self) -> WorkerId:
        """The worker's id."""
        return self.spec.id


@dataclass(slots=True)
class Flight:
    """One admitted request. What `release` takes back is exactly what was added at dispatch and after."""

    request: Request
    """As its worker has it: the one admitted, or what is left of it."""
    admitted: Request
    entry: WorkerEntry | None = None
    dispatched_ms: float = 0.0
    cached_tokens: int = 0
    exact: bool = False
    """`cached_tokens` is by the worker's own word."""
    ahead_tokens: int = 0
    """Prompt tokens that were to be computed there up to its first token, its own included, when it was sent."""
    prefill_tokens: int = 0
    """Still counted as prefill on its worker; 0 after the first token."""
    kv_tokens: int = 0
    """Counted as KV in use on its worker."""
    sequences: int = 0
    """Counted as running on its worker."""
    text_before: int = 0
    """Leading text blocks that were thought to be at the worker before it."""
    started: bool = False
    expected: ExpectedLength | None = None
    """How long each of its answers may be; None: its worker generates none."""
    remaining_tokens: int = 0
    """Counted as still to be generated on its worker."""
    due_ms: int | None = None
    """Counted there as promised for its first token, until that comes."""
    tpot_us: int | None = None
    """Counted there as promised between its tokens, from the first one on."""
    adapter_missing: bool | None = None
    """Its worker had to load the adapter first; None: it asks for none."""
