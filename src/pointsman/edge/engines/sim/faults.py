"""Faults that a simulated engine shows on request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec

from pointsman.edge.engines.openai_server.errors import bad_request

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class EventFaults(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What happens to batches of KV events. A batch that is not sent stays available for replay."""

    stop: bool = False
    """Nothing is sent and no replay is answered."""
    drop: Probability = 0.0
    duplicate: Probability = 0.0
    reorder: Probability = 0.0
    """A batch is held back until the next one is out."""


class Faults(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """All faults; each `POST /sim/faults` replaces them. Without a field the engine is well in that respect."""

    slow_factor: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Each step takes that many times its duration."""
    hang: bool = False
    """Requests for tokens are accepted and never answered."""
    refuse: bool = False
    """Requests for tokens have their connection cut before any answer."""
    unhealthy: bool = False
    """`/health` answers 503 while tokens flow."""
    error_status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    """Requests for tokens get this status at once."""
    reset_after_tokens: Count | None = None
    """The connection is cut after that many tokens; 0 = after the head, before the first token."""
    error_after_tokens: Count | None = None
    """An error event ends the stream after that many tokens (without streaming: status 500)."""
    no_done: bool = False
    """Streams end properly but without `data: [DONE]`."""
    first_byte_delay_ms: Milliseconds = 0.0
    """Requests for tokens wait that long (real time) before the engine sees them."""
    requests: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many requests for tokens the faults above (from `hang`, without `unhealthy`) hit; None = all."""
    events: EventFaults = EventFaults()
    restart: bool = False
    """At once: all state, connections and the event sequence are gone, as after a crash."""
    down_ms: Milliseconds = 0.0
    """How long a restart stays away (real time)."""


@dataclass(frozen=True, slots=True)
class StreamFaults:
    """What happens in the middle of one answer."""

    after_tokens: float = math.inf
    error_event: bool = False
    """An error event; otherwise the connection is cut."""
    no_done: bool = False

    @property
    def message(self) -> str:
        """Text of the error."""
        return f"EngineCore encountered an issue after {self.after_tokens:.0f} tokens (injected fault)."


NO_FAULTS = Faults()
NO_STREAM_FAULTS = StreamFaults()


def parse_faults(body: bytes) -> Faults:
    """Faults from JSON; the error names an unknown key or a wrong value."""
    try:
        faults = msgspec.json.decode(body or b"{}", type=Faults)
    except msgspec.ValidationError as error:
        known = ", ".join(Faults.__struct_fields__)
        raise bad_request(f"{error}. Known faults: {known}; in events: stop, drop, duplicate, reorder.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if faults.reset_after_tokens is not None and faults.error_after_tokens is not None:
        raise bad_request("reset_after_tokens and error_after_tokens exclude each other; choose one")
    return faults


class FaultState:
    """The active faults and how many requests they still hit."""

    def __init__(self) -> None:
        self.active = NO_FAULTS
        self._left: int | None = None

    def set(self, faults: Faults) -> None:
        """Replace the active faults."""
        self.active = faults
        self._left = faults.requests

    def next_request(self) -> Faults:
        """Faults that hit the next request for tokens."""
        if self._left is None:
            return self.active
        if self._left == 0:
            return NO_FAULTS
        self._left -= 1
        return self.active


def stream_faults(faults: Faults) -> StreamFaults:
    """What of a request's faults happens in the middle of its answer."""
    if faults.reset_after_tokens is not None:
        return StreamFaults(faults.reset_after_tokens)
    if faults.error_after_tokens is not None:
        return StreamFaults(faults.error_after_tokens, error_event=True)
    return StreamFaults(no_done=True) if faults.no_done else NO_STREAM_FAULTS
