"""Peer: another front end as this one hears it, and what of its messages is to be believed.

Messages to all are numbered. One that is older than the last is dropped; where a number is missing, something was lost
and the peer is asked for everything until it answered. So is a peer that was not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.edge.cluster.replicas.bus import ReplicaId
from pointsman.edge.cluster.replicas.message import Message


@dataclass(slots=True)
class Peer:
    """State of one replica. Times are in ms of the bus's clock."""

    replica: ReplicaId
    name: str
    sequence: int
    since_ms: float
    heard_ms: float
    wants_whole: bool = True
    """Something of it is not known."""
    answered_ms: float = float("-inf")
    """When it was last told everything of ours."""
    gaps: int = 0
    """How often messages of it were lost."""
    wholes: int = 0
    """How often it told everything."""

    def takes(self, message: Message, now_ms: float) -> bool:
        """Whether the message is news; it is noted as heard."""
        self.heard_ms = now_ms
        if message.whole_for:
            if message.sequence < self.sequence:
                return False  # older than what is known: the next one is waited for
            self.sequence = message.sequence
            self.wants_whole = False
            self.wholes += 1
            return True
        if message.sequence <= self.sequence:
            return False
        if message.sequence > self.sequence + 1:
            self.gaps += 1
            self.wants_whole = True
        self.sequence = message.sequence
        return True
