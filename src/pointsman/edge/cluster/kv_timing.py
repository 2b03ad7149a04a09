"""KvTiming: how long KV feeds wait for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvTiming:
    """All in seconds."""

    subscribe_s: float = 0.1
    """From a connection to when the engine has surely heard of the subscription."""
    late_s: float = 0.1
    """Without a replay, how long batches that come in the wrong order are waited for."""
    silence_s: float = 5.0
    """After so long without a batch the engine is asked whether one was missed."""
    replay_silence_s: float = 3.0
    """A replay from which nothing comes for so long has failed."""
    replay_attempts: int = 3
    first_pause_s: float = 0.25
    """Before a second attempt; doubles with each further one."""
    unconnected_s: float = 10.0
    """After so long without a connection somebody is told."""
    reopen_s: float = 5.0
    """Before sockets that could not be opened are tried again."""
    doubt_s: float = 60.0
    """At most so often a feed verifies itself because somebody doubts it."""
    slice_s: float = 0.002
    """So long batches are applied before others have their turn on the event loop."""
