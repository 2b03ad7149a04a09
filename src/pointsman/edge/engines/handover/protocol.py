"""HandOver: what one kind of engine has to be asked so that one computes a prompt and another one goes on with it.

Nothing here sends anything: the front end carries the legs out, in the order that is said, and frees what is held.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.worker import WorkerId
from pointsman.edge.wire.headers import Headers


class HandOverError(PointsmanError):
    """A prefill leg's answer can't be used; says what is wrong. The decode side computes the prompt itself."""


class Order(enum.Enum):
    """When the legs are sent."""

    PREFILL_FIRST = "prefill first"
    """The decode leg needs the prefill leg's answer."""
    TOGETHER = "together"
    """Both at once; if one fails the other one has to be cancelled, and the prefill leg's answer is not waited for."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the two engines."""

    worker: WorkerId
    url: str
    """Base URL without a trailing slash."""
    kv: KvShape
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The client's request, checked, as it would go to one engine."""

    path: str
    """Such as /v1/chat/completions."""
    body: bytes
    request_id: bytes
    """Goes with both legs as x-request-id."""
    number: int
    """Never given twice by this front end, hardly by another one; from 2^42 to 2^62. For rooms and ids of legs."""
    streamed: bool
    prompt_ids: Sequence[int] | None = None
    """The tokenized prompt, where the front end has it."""


@dataclass(frozen=True, slots=True)
class LegRequest:
    """What is sent to one engine."""

    body: bytes
    path: str | None = None
    """None: as the client's."""
    headers: Headers = ()
    """Beside those of every request."""
    method: str = "POST"
    at_decode: bool = False
    """Of a call beside the legs: it goes to the engine that decodes."""
    refused: bool = False
    """A 4xx is the answer that is hoped for."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The prefill leg answered everything there is to answer: its answer is the client's.

    A client that asked for a stream gets it by `edge/engines/handover/as_stream.py`.
    """

    answer: bytes | None = None
    """As the client should get it, without what only the engines need to know; None: as it came."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What an engine's answer tells of the transfer; `None`: it does not."""

    tokens: int | None = None
    size_bytes: int | None = None
    took_ms: float | None = None
    transport: str | None = None


class HandOver(Protocol):
    """Of one hand-shake. Holds no state. Bodies are edited as bytes: the rest stays as the client wrote it."""

    @property
    def handshake(self) -> HandShake:
        """Which one."""
        ...

    @property
    def order(self) -> Order:
        """When its legs are sent."""
        ...

    @property
    def lease_s(self) -> float | None:
        """How long the prefill side holds KV that nobody fetches; None: until it is told."""
        ...

    def refusal(self, asked: Asked) -> str | None:
        """Why this request can't be split (n > 1, embeddings, a field of the client's own that is in the way …)."""
        ...

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The leg that computes the prompt. Its answer is never streamed."""
        ...

    def between(self, asked: Asked, prefill: Peer, decode: Peer) -> tuple[LegRequest, ...]:
        """Calls between a prefill leg that was answered and the decode leg, in this order; all have to be answered 200.

        Those `at_decode` go to the engine that decodes. Empty for most.
        """
        ...

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The leg that answers the client. `answer`: the prefill leg's, None where both go together.

        Raises HandOverError where it can't be used.
        """
        ...

    def hold(self, asked: Asked, source: Peer, tokens: int) -> LegRequest | None:
        """A call that has a worker keep the leading tokens that it holds, to be fetched; None: its kind has no such."""
        ...

    def pull(self, asked: Asked, source: Peer, target: Peer, answer: bytes) -> tuple[LegRequest, int]:
        """The request that fetches what `hold` was answered, and how many tokens that is. Raises HandOverError."""
        ...

    def release(self, source: Peer, answer: bytes) -> LegRequest | None:
        """A call that frees at once what a prefill leg or a hold keeps; None: its lease does, or a connection's end.

        Only for what nobody fetched: a decode leg that an engine has taken frees the other side by itself.
        """
        ...

    def moved(self, body: bytes) -> Moved | None:
        """What the decode leg's plain answer, or the last event of its stream, tells; None: nothing."""
        ...
