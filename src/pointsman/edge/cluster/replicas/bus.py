"""Bus: how front ends of one fleet tell each other things. Whoever has something to tell takes a topic of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

ReplicaId = str
"""Of one start of a front end: a new one each time it starts."""
Heard = Callable[[ReplicaId, bytes], None]
"""(who, what), in the order in which that replica told it; some of it may be lost."""
Gone = Callable[[ReplicaId], None]
"""A replica said goodbye, or was not heard for too long: forget all that it told."""
Tell = Callable[[], bytes | None]
"""Everything of a topic that somebody needs who hears of this replica for the first time; None: nothing."""


class Bus(Protocol):
    """Of one front end. All calls are made on its event loop and return at once."""

    @property
    def replica(self) -> ReplicaId:
        """This front end."""
        ...

    def publish(self, topic: str, payload: bytes) -> None:
        """Tell all others, soon."""
        ...

    def subscribe(self, topic: str, heard: Heard, gone: Gone, whole: Tell) -> None:
        """Hear of a topic what others publish there; `whole` is asked for when somebody new is there, and goes out as
        a message of this topic."""
        ...


class NoBus:
    """Of a front end that is alone."""

    replica: ReplicaId = "alone"

    def publish(self, topic: str, payload: bytes) -> None:
        """Nobody is there to hear it."""

    def subscribe(self, topic: str, heard: Heard, gone: Gone, whole: Tell) -> None:
        """Nobody will say anything."""
