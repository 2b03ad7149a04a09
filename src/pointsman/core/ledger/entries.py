"""What the ledger keeps of one worker and of one request in flight. Mutable, and nobody else's."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add

from pointsman.core.ledger.adapters import ResidentAdapters
from pointsman.core.ledger.drift import Drift
from pointsman.core.ledger.faults import FaultTally
from pointsman.core.ledger.health.health import Health
from pointsman.core.ledger.kv_trust import KvTrust
from pointsman.core.ledger.output_lengths import ExpectedLength
from pointsman.core.ledger.watch import Watch
from pointsman.core.model.replica import NO_SHARE, WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec


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
    prefills: int = 0
    """Prompts computed for another worker."""
    prefills_failed: int = 0
    """Prompts that were to be computed for another worker, which had to do it itself, or to do without."""
    transfers_out: int = 0
    """Of KV from here that arrived."""
    transfers_in: int = 0
    moved_tokens: int = 0
    """Whose KV arrived here, as told, else as thought when it was sent."""
    moved_out_bytes: int = 0
    """As told, else from the tokens; 0 where nobody knows the bytes of a token."""
    moved_in_bytes: int = 0


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
    gives: set[str] = field(default_factory=set)
    """Requests of which it keeps KV until another worker has fetched it; those in `flights` are not among them."""
    told_role: Role = Role.BOTH
    """As who told of it said; `spec.role` may be another one, by an order at run time."""
    kv_class: int = 0
    """Workers of one class can pass KV on to each other; 0: it passes none on."""
    kv_trust: KvTrust = field(default_factory=KvTrust)
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
    def busy(self) -> bool:
        """Requests are there, or KV of theirs that another worker fetches."""
        return bool(self.flights or self.gives)

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
    """What it was thought to hold is by its own word."""
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
    """Its worker had to load the adapter first; None: it asks for none, or nobody can tell what that takes."""
    elsewhere: bool = False
    """Its prompt is with another worker yet: nothing is to come from this one."""
    unwatched: bool = False
    """It teaches its worker's step times nothing."""
    legs: FlightLegs | None = None
    """What it has at other workers; None: nothing was moved for it."""


@dataclass(slots=True)
class Transfer:
    """KV on its way for one request, or what came of that."""

    source: WorkerEntry
    target: WorkerEntry
    flight: Flight
    """Stay that it is for."""
    tokens: int
    """That are thought to be moved."""
    token_bytes: int
    """0: nobody knows."""
    others: int
    """Transfers that shared one of its ends when it began."""
    kept_tokens: int = 0
    """Counted as KV in use at the source until it ended."""
    under_way: bool = True
    told: bool = False
    """Somebody said what it was like."""
    counted_tokens: int = 0
    """In the totals."""
    counted_bytes: int = 0


@dataclass(slots=True)
class FlightLegs:
    """What a request has at other workers than the one that answers it."""

    own_cached_tokens: int
    """That the worker which computes the prompt, or is to when all else fails, is thought to hold itself."""
    exact: bool
    prefill: Flight | None = None
    """Its stay at the worker for prefill, over when the prompt is computed (`started`) or that came to nothing."""
    prefill_told: bool = False
    transfer: Transfer | None = None
    """The last one."""
    failed: bool = False
    """The worker that answers does all of it."""
