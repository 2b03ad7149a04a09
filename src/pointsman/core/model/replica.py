"""What front ends of one fleet tell each other of their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.worker import WorkerId


class WorkerShare(NamedTuple):
    """What the requests of one front end add to the numbers of one worker, all of it together: never a difference."""

    requests: int = 0
    sequences: int = 0
    prefill_tokens: int = 0
    kv_tokens: int = 0
    waiting_first: int = 0
    remaining_tokens: int = 0
    slo_decoding: int = 0
    slo_tpot_us: int = 0
    slo_waiting: int = 0
    slo_due_in_ms: int = 0
    """Sum of the times until these were promised, from when it was told: clocks of different hosts have nothing in
    common."""
    transfers_out: int = 0
    transfers_in: int = 0


NO_SHARE = WorkerShare()


@dataclass(frozen=True, slots=True)
class PromptTold:
    """A prompt that another front end sent to a worker, or one that never arrived there."""

    worker: WorkerId
    model: str
    text_keys: Sequence[int] = ()
    """Its blocks by text, where nobody goes by the worker's own word."""
    token_keys: Sequence[int] = ()
    """Blocks that the worker has not said it holds."""
    spec: KeySpec | None = None
    """Of the token keys."""
    taken_back: bool = False
    """These blocks did not get there after all."""


@dataclass(frozen=True, slots=True)
class ReplicaNews:
    """What one front end has to tell at one moment."""

    shares: Mapping[WorkerId, WorkerShare] = field(default_factory=dict)
    """Of the workers where something changed; no share: nothing is there any more."""
    prompts: Sequence[PromptTold] = ()
    """In the order in which they were sent."""
    arrivals: Mapping[str, int] = field(default_factory=dict)
    """Requests that came, by model."""
    whole: bool = False
    """The shares are all that there are: at every other worker it has nothing."""

    def __bool__(self) -> bool:
        """There is something to tell."""
        return self.whole or bool(self.shares or self.prompts or self.arrivals)
