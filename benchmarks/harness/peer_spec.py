"""What the peer's side of the decision benchmark does: the border to a process in the peer's environment."""

from __future__ import annotations

import msgspec


class PeerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One round over all cases."""

    workers: tuple[int, ...]
    tokens: tuple[int, ...]
    requests: int
    sessions: int
    in_flight_per_worker: int
    seed: int
