"""Why KV was not moved after all, as metrics name it, and what that depends on."""

from __future__ import annotations

import enum

from pointsman.core.model.fault import Fault
from pointsman.core.model.kv_shape import HandShake


class Why(enum.StrEnum):
    """Reasons beside the faults of the second engine, which have their own names (`Fault`)."""

    REFUSED = "refused"
    """The request can't be split: it was decided again for one engine."""
    UNUSABLE = "unusable_answer"
    """The prefill leg was answered, but not with what the other leg needs."""
    NOTHING_HELD = "nothing_held"
    """The worker that held the beginning of the prompt has dropped it, or keeps nothing for others."""
    GIVEN_UP = "worker_given_up"
    """The worker that has the KV was thought dead before all of it had come."""
    STUCK = "transfer_stuck"
    """Both engines are well, and the KV does not come."""
    DRAINED = "worker_drains"
    """The worker that has the KV was to be free."""
    NOT_FOUND = "not_found"
    """The worker that answers computed all of the prompt itself, by its own count of cached tokens."""
    DECODE_REFUSED = "decode_refused"
    """The worker that answers did not go on from what another one computed."""


LEFT_TO_THE_CLIENT = frozenset(range(400, 500)) - {401, 407, 408, 429}
"""Statuses of a prefill leg that the client caused. The others are about our key, or the engine's load."""

FETCHED_IS_CACHED = frozenset((HandShake.SHARED_STORAGE, HandShake.LLAMACPP_SLOTS))
"""Engines that count what came from others among the cached tokens of their answers. With NixlConnector vLLM tells what
the engine for prompts had cached."""
SURELY_A_BLOCK_TOKENS = 512
"""Shorter prompts may have no block that could be passed on."""

TAKEN_AWAY = frozenset((Why.GIVEN_UP, Why.STUCK, Why.DRAINED))
"""Legs that did not fail: they are ended here, and nobody computes on."""

NOT_THERE = frozenset((Fault.UNREACHABLE, Fault.CONNECT_LATE, Fault.LOST, Fault.LATE))
"""Faults of an engine that was to say that KV is not needed: another one that can read it may say so."""

ONLY_LATE = frozenset((Fault.CONNECT_LATE, Fault.LATE))
"""Faults of an engine that stands still, and may hear of it yet."""

NOT_OF_THE_TRANSFER = frozenset(
    (Fault.UNREACHABLE, Fault.CONNECT_LATE, Fault.OVERLOADED, Fault.LOST, Fault.LATE),
)
"""Faults of the engine that answers which have nothing to do with KV of others."""
