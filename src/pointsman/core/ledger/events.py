"""Events: everything that may change what the ledger holds. Each carries when it happened, in ms of the caller's clock.

The life of a request is `Admitted`, then any number of `Dispatched` … `AttemptFailed` (with `FirstToken` and `Progress`
between them where its stream went on elsewhere), then for the last attempt `Dispatched`, `FirstToken`, `Progress`*, and
exactly one of `Finished`, `Refused`, `Failed`, `Cancelled`. The last two
may come at any point.

A `Dispatched` with a prefill elsewhere or a pull is followed by at most one `PrefillEnded` and by a `TransferEnded` for
each transfer, or by `PrefillFailed` before the first token. The first token says all of it where nobody did: the two
others may come after it, but not after the attempt ended, and then tell only what they know.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.model.fault import Fault
from pointsman.core.model.guards import Guards
from pointsman.core.model.replica import ReplicaNews
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import GPU, BlockHash, KeySpec
from pointsman.core.model.transfer import USUAL_RULES, TransferRules
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker may be used once it is ready. A known id means: the old one is gone, with its cache."""

    spec: WorkerSpec
    at_ms: float


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """The same process as before tells something else of itself, an adapter more for example. Its cache stays."""

    spec: WorkerSpec
    at_ms: float


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """No new work for it; what runs there goes on."""

    worker: WorkerId
    at_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerResumed:
    """It drains no more: new work is for it again, as far as its health allows."""

    worker: WorkerId
    at_ms: float


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """It is gone. Requests in flight there still end through their own events."""

    worker: WorkerId
    at_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class HealthRead:
    """What a probe saw. `reachable` False: nothing answered in time; `ready` False: it answered that it is not."""

    worker: WorkerId
    at_ms: float
    reachable: bool
    ready: bool
    reason: str
    refused: bool = False
    """Not reachable, and no doubt about it: nobody listens there. Else it may only be late."""


@dataclass(frozen=True, slots=True)
class MetricsRead:
    """The engine's own count of its load, requests of other routers included."""

    worker: WorkerId
    at_ms: float
    running: int
    waiting: int
    kv_use: float | None = None
    """0 to 1."""
    kv_capacity_tokens: int | None = None
    resident_adapters: frozenset[str] | None = None
    """LoRA adapters that requests run with there now; None: it does not say."""
    most_adapters: int | None = None
    """That are on its GPU at once; None: it does not say."""
    generated_tokens: int | None = None
    """That it generated since it started; None: it does not say."""


@dataclass(frozen=True, slots=True)
class GpuRead:
    """How busy a worker's GPUs are, 0 to 1; None: nobody can say any more."""

    worker: WorkerId
    at_ms: float
    use: float | None
    memory: float | None = None
    """Share of their memory that is used, 0 to 1; None: nobody says."""


@dataclass(frozen=True, slots=True)
class StreamsRead:
    """How our streams at a worker fare that have begun and whose client keeps up; send one about every second."""

    worker: WorkerId
    at_ms: float
    streams: int
    tokens: int
    """That came since the last such event."""
    last_ms: float
    """When the last one came."""
    quiet_ms: float
    """Four of five streams got nothing for at least so long."""


class CanaryResult(enum.StrEnum):
    """How a canary went."""

    PASSED = "passed"
    """All of it came, through to the end of the stream."""
    REFUSED = "refused"
    """The engine does not take such requests (4xx): that says nothing of its health."""
    BUSY = "busy"
    """It takes nothing now (429, 503)."""
    LATE = "late"
    """It was not answered in time, or its stream stood still."""
    FAILED = "failed"
    """5xx, an error event, or what is no proper stream."""
    LOST = "lost"
    """The connection ended before the answer did."""
    UNREACHABLE = "unreachable"
    """Nobody listens there."""


@dataclass(frozen=True, slots=True)
class CanarySent:
    """A small generation of our own is on its way to a worker. It is no request: nothing else counts it."""

    worker: WorkerId
    at_ms: float


@dataclass(frozen=True, slots=True)
class CanaryRead:
    """How the canary sent at `sent_ms` went."""

    worker: WorkerId
    at_ms: float
    sent_ms: float
    result: CanaryResult
    reason: str
    total_ms: float | None = None
    """How long it took, where it passed."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that passed all checks and waits for a worker."""

    request: Request
    at_ms: float


@dataclass(frozen=True, slots=True)
class PrefillLeg:
    """The prompt is computed at another worker than the one that answers."""

    worker: WorkerId
    cached_tokens: int = 0
    """Leading tokens that it is thought to hold."""
    exact: bool = False
    """By its own word."""


@dataclass(frozen=True, slots=True)
class PullLeg:
    """The beginning of the prompt is fetched from a worker that holds it."""

    source: WorkerId
    tokens: int


@dataclass(frozen=True, slots=True)
class Dispatched:
    """It goes to a worker, which is thought to hold `cached_tokens` of it."""

    request_id: str
    worker: WorkerId
    at_ms: float
    cached_tokens: int = 0
    exact: bool = False
    """By its own word."""
    rest: Request | None = None
    """What is left of it where it goes on from what another worker generated: its prompt is longer by that, and its
    answer shorter. None: it is as admitted."""
    prefill: PrefillLeg | None = None
    """`worker` decodes what that one computed; it has to compute nothing of the prompt itself."""
    pull: PullLeg | None = None
    """Who computes the prompt fetches its beginning first."""


@dataclass(frozen=True, slots=True)
class PrefillEnded:
    """The prefill leg is answered: its worker keeps the KV until it was fetched, which may go on from now."""

    request_id: str
    at_ms: float
    prompt_tokens: int | None = None
    """By the engine's word."""
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PrefillFailed:
    """The prefill leg, or the way from there, came to nothing: the worker that answers computes the prompt itself.

    Of a pull: it computes what it should have fetched.
    """

    request_id: str
    at_ms: float
    reason: str
    fault: Fault | None = None
    """Of the worker for prefill, or of the source of a pull; None: not theirs."""
    retry_after_ms: float | None = None
    no_kv: bool = False
    """Both workers are well as far as one knows, and the KV of the one was of no use to the other one."""


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """The KV was fetched, so nothing of it is held for this request any more. Told at its first token, if not before.

    What is known of it teaches the link between the two machines; `None`: nobody says.
    """

    request_id: str
    at_ms: float
    tokens: int | None = None
    size_bytes: int | None = None
    took_ms: float | None = None


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """A transfer, or a probe, between two machines, by their names. Directed."""

    source: str
    target: str
    at_ms: float
    size_bytes: int
    took_ms: float
    under_way: int = 0
    """Other transfers that shared the link meanwhile."""


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """A worker computes other stages from now on; what is there ends as it began."""

    worker: WorkerId
    at_ms: float
    role: Role


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token, or the whole answer of a request that does not stream, arrived."""

    request_id: str
    at_ms: float


@dataclass(frozen=True, slots=True)
class Progress:
    """So many more tokens since the last such event, over all of its sequences."""

    request_id: str
    at_ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """It goes on elsewhere, from its beginning or, after a first token, from what was generated; it waits again."""

    request_id: str
    at_ms: float
    reason: str
    fault: Fault | None = None
    """None: not the worker's."""
    retry_after_ms: float | None = None
    """For how long it asked to be left alone, where it is overloaded."""
    of_other: bool = False
    """The fault is of the worker that was to compute its prompt, and `PrefillFailed` told of it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Answered. Token counts are the engine's, None where it did not say."""

    request_id: str
    at_ms: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine would not take it and said so to the client (4xx): nothing was computed, and nobody failed."""

    request_id: str
    at_ms: float
    status: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Ended with an error of the engine, the connection or ours."""

    request_id: str
    at_ms: float
    reason: str
    fault: Fault | None = None
    """None: not the worker's."""
    retry_after_ms: float | None = None
    """For how long it asked to be left alone, where it is overloaded."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client left."""

    request_id: str
    at_ms: float


class KvFeedState(enum.StrEnum):
    """What the events of a worker's KV cache are worth."""

    OFF = "off"
    """It sends none."""
    SYNCING = "syncing"
    """They are on their way, and what came before them is being fetched."""
    COMPLETE = "complete"
    """Everything since its start, or since it was last cleared, was applied."""
    PARTIAL = "partial"
    """What is known is true, but something before it is not known."""


@dataclass(frozen=True, slots=True)
class KvFeedChanged:
    """A worker's feed of KV events changed its state. If removals were lost, BlocksCleared comes before PARTIAL."""

    worker: WorkerId
    at_ms: float
    state: KvFeedState
    reason: str


@dataclass(frozen=True, slots=True)
class KvChecked:
    """A request of known tokens was sent to the worker, and its events were compared. `fault` None: they agree."""

    worker: WorkerId
    at_ms: float
    fault: str | None


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """The engine holds these blocks now."""

    worker: WorkerId
    at_ms: float
    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    """Block before the first of them; None = start of a sequence."""
    tokens: bytes
    """Packed tokens of all of them (core/model/token_keys)."""
    spec: KeySpec
    medium: str = GPU
    lora_name: str | None = None
    extras: Mapping[int, bytes] = field(default_factory=dict)
    """Number of a block among these → what else keys it."""
    keys: tuple[int, ...] | None = None
    """Their keys, where the engine is modelled and its blocks have no tokens: `parent`, `tokens` and what else keys
    them say nothing then. Chained and from 0 to 2^60 as keys of tokens are."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """The engine does not hold these blocks any more in that medium."""

    worker: WorkerId
    at_ms: float
    hashes: tuple[BlockHash, ...]
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """The engine holds no blocks any more, or nobody knows which."""

    worker: WorkerId
    at_ms: float


@dataclass(frozen=True, slots=True)
class ReplicaTold:
    """Another front end of the fleet told something of its requests. What it told last of a worker holds."""

    replica: str
    """One start of a front end: a new name each time it starts."""
    at_ms: float
    news: ReplicaNews


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """Another front end is not there any more, or was not heard for too long: its requests count no more."""

    replica: str
    at_ms: float


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The operator wants other limits from now on."""

    at_ms: float
    guards: Guards
    retry_share: float
    """Retries that a request adds to their budget, 0 to 1."""
    health: HealthSettings
    transfer: TransferRules = USUAL_RULES


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; send one about every second so that what has a TTL goes."""

    at_ms: float


MembershipEvent = WorkerJoined | WorkerChanged | WorkerDraining | WorkerResumed | WorkerLeft | RoleChanged
HealthEvent = HealthRead | StreamsRead | CanarySent | CanaryRead
WorkerEvent = MembershipEvent | HealthEvent | MetricsRead | GpuRead
KvEvent = KvFeedChanged | KvChecked | BlocksStored | BlocksRemoved | BlocksCleared
LegEvent = PrefillEnded | PrefillFailed | TransferEnded
RequestEvent = (
    Admitted | Dispatched | LegEvent | FirstToken | Progress | AttemptFailed | Finished | Refused | Failed | Cancelled
)
ReplicaEvent = ReplicaTold | ReplicaGone
Event = WorkerEvent | KvEvent | RequestEvent | ReplicaEvent | LinkMeasured | Tick | RulesChanged
