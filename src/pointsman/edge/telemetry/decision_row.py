"""One line of the decision log, and its header. A change that old readers can't ignore changes `VERSION`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

VERSION = 1
MARK = "pointsman_decisions"
KEY_BITS = 48
"""Of a block's key are kept: two of a million different blocks are the same with a chance of 1 in 500."""
KEY_CHARACTERS = KEY_BITS // 6
MOST_CANDIDATES = 32
"""In a row of the log; the admin port tells all of them."""


class Header(msgspec.Struct):
    """The first line of each file."""

    pointsman_decisions: int
    """Version of the format."""
    pointsman: str = ""
    """Version of the product."""
    started_ms: float = 0.0
    """When the file was begun, ms since 1970."""


class LoggedCandidate(msgspec.Struct, omit_defaults=True):
    """One worker as the policy judged it."""

    worker: str
    score: float | None = None
    """In the row's `unit`; the least wins."""
    excluded: str | None = None
    cached: int = 0
    load: int = 0
    terms: dict[str, float] = {}
    """What the score is made of."""
    weight: float | None = None
    """That its operator gave it; None: 1."""


class LoggedPlan(msgspec.Struct, omit_defaults=True):
    """A plan that moves KV, as the policy judged it."""

    worker: str
    """That answers."""
    prefill: str | None = None
    """That would compute the prompt for it."""
    source: str | None = None
    """That the beginning of the prompt would be fetched from."""
    moved_tokens: int = 0
    moved_bytes: int = 0
    """0: nobody knows the bytes of a token."""
    score: float | None = None
    """In the row's `unit`; of an excluded one what it would have been."""
    excluded: str | None = None
    terms: dict[str, float] = {}


class LoggedLegs(msgspec.Struct, omit_defaults=True):
    """What came of KV that was moved for the request, or was to be. Absent: it is not known."""

    prefill: str | None = None
    """That computed the prompt, or was to."""
    source: str | None = None
    """That the beginning of the prompt was fetched from, or was to be."""
    prefill_ms: float | None = None
    """From the decision until the prompt was computed."""
    transfer_ms: float | None = None
    """By the engine's word, else from then to the first token."""
    moved_tokens: int | None = None
    moved_bytes: int | None = None
    transport: str | None = None
    lost_ms: float | None = None
    """From the decision until it was clear that nothing comes; only beside `fallback`."""
    fallback: str | None = None
    """Why the worker that answers computed it all the same."""


class DecisionRow(msgspec.Struct, omit_defaults=True):
    """One request, as the log has it once it ended, and the admin port before, too."""

    id: str
    at_ms: float
    """When it arrived, ms since 1970."""
    model: str
    status: str
    """finished, refused (by the engine), failed, cancelled (the client left); running: it has not ended."""
    http: int
    """Status that the client got; 499: it left first; 0: none yet."""
    prompt_tokens: int
    prompt_from: str
    """Who says so: engine, tokenizer or estimate (from its length)."""
    prompt_expected: int | None = None
    """Tokens that the decision went by, where the engine counted another number."""
    output_tokens: int = 0
    """As the engine says, else events of the stream that came."""
    prompt_bytes: int = 0
    client: str | None = None
    """Hash of the `x-request-id` that the client gave: see `hashed`."""
    tenant: str | None = None
    session: str | None = None
    """Hash of the route key."""
    sequences: int = 1
    streamed: bool = True
    block_unit: str = ""
    """tokens or bytes."""
    block_size: int = 0
    blocks: str = ""
    """Keys of the prompt's full blocks, 8 characters each, chained: see `pack_keys`."""
    policy: str = ""
    worker: str | None = None
    cached: int = 0
    """Prompt tokens thought cached at the worker that computes the prompt, with those that it fetches."""
    exact: bool = False
    """By its own word."""
    cached_reported: int | None = None
    unit: str = ""
    """Of scores."""
    runner_up: str | None = None
    margin: float | None = None
    """By how much it lost."""
    prefill_worker: str | None = None
    """That was to compute the prompt for `worker`."""
    pull_source: str | None = None
    """That `worker` was to fetch the beginning of the prompt from."""
    runner_up_prefill: str | None = None
    """Where the best of the others was to have its prompt computed apart."""
    runner_up_source: str | None = None
    plans: list[LoggedPlan] = []
    """The best that move KV, then those that were excluded."""
    plans_comparable: bool = True
    """Their scores and those of the candidates are of one kind; False: they only rank workers for the prompt."""
    legs: LoggedLegs | None = None
    """What came of them."""
    predicted_alone_ms: float | None = None
    """`predicted_ttft_ms` of the best worker without moving KV, where a plan that moves it was chosen."""
    workers: int = 0
    """Candidates in all."""
    candidates: list[LoggedCandidate] = []
    """The best of them, then those that were excluded."""
    excluded: dict[str, int] = {}
    """How many of all were excluded, by reason."""
    note: str | None = None
    guards_lifted: bool = False
    """The operator's guards would have left nobody."""
    arm: str | None = None
    """Of a rollout: base or trial."""
    shadows: dict[str, str | None] = {}
    """What policies that decided in the shadow would have chosen."""
    predicted_ttft_ms: float | None = None
    """When it was decided, from then on."""
    predicted_tpot_ms: float | None = None
    ttft_ms: float | None = None
    """What came true of the first, from the decision on; None where nothing came."""
    itl_ms: float | None = None
    """Mean time between its tokens."""
    gap_ms: float | None = None
    """Longest time between two pieces of its stream."""
    slo_missed: list[str] = []
    """Promised times that were not kept: ttft, tpot."""
    attempts: int = 1
    failed_at: list[str] = []
    """Workers that failed it, or gave it away, before it went to the one above."""
    migrations: int = 0
    """Times that its stream went on elsewhere; then the decision is the last one, not that of its first token."""
    dispatched_ms: float | None = None
    """From its arrival, as the next two."""
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    """Of an answer that is not streamed: when it came."""
    sample: float = 1.0
    """Chance with which such a request is written."""
    state: str = ""
    """All that the policy was given, packed: see edge/decisions/state.py."""


def hashed(text: str) -> str:
    """What stands for an id or key of a client, which is not told itself: 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def pack_keys(keys: Sequence[int]) -> str:
    """The low 48 bits of each key, as base64: 8 characters a key, exact in every JSON reader."""
    if not keys:
        return ""
    # Big-endian, so that the last six bytes are the low ones.
    numbers = np.array(keys, dtype=np.uint64).astype(">u8")
    low = numbers.view(np.uint8).reshape(-1, 8)[:, 8 - KEY_BITS // 8 :]
    return base64.b64encode(low.tobytes()).decode("ascii")


def unpack_keys(text: str) -> list[str]:
    """One text a key. Raises ValueError for a text that holds no whole number of keys."""
    if len(text) % KEY_CHARACTERS:
        raise ValueError(f"{len(text)} characters are no whole number of keys of {KEY_CHARACTERS}")
    return [text[start : start + KEY_CHARACTERS] for start in range(0, len(text), KEY_CHARACTERS)]
