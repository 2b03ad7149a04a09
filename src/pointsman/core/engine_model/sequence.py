"""The state of one answer while it is computed. What it is made of is up to its subclasses."""

from __future__ import annotations

import enum
from collections.abc import Sequence as Hashes
from typing import Protocol

from pointsman.core.engine_model.block_pool import Key
from pointsman.core.engine_model.events import BlockStored
from pointsman.core.engine_model.request import EngineRequest, LengthRequest
from pointsman.core.model.stage import Stage


class SequenceState(enum.IntEnum):
    """Where a sequence is. A preempted one is waiting again."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    ABORTED = 3
    RESERVED = 4
    """It has KV blocks, and their contents are on their way from another engine."""


class StepCount(Protocol):
    """Steps of all that decode together, see decoders.py."""

    block_size: int
    ticks: int
    """That are done."""
    opened: int
    """That have begun."""


class Sequence:
    """One answer. Only the scheduler and the engine change it; everybody may read it.

    While it decodes, one token a step, its length and its blocks are not written down but follow from the number of
    steps since (`decoders`).
    """

    __slots__ = (
        "cached_tokens",
        "decoders",
        "fetches",
        "first_token_ms",
        "hashes",
        "index",
        "keys",
        "offset",
        "preempted_ms",
        "preemptions",
        "prompt_length",
        "request",
        "scheduled_ms",
        "serial",
        "stage",
        "state",
        "still_blocks",
        "still_computed",
        "still_length",
        "target_length",
        "transfer_tokens",
    )

    writes_tokens = False
    """Whether it has contents: a token for each step."""

    def __init__(
        self,
        request: EngineRequest | LengthRequest,
        index: int,
        prompt_length: int,
        target_length: int,
        hashes: Hashes[int],
        stage: Stage = Stage.WHOLE,
        fetches: bool = False,
    ) -> None:
        self.request = request
        self.index = index
        self.stage = stage
        self.fetches = fetches or stage is Stage.DECODE
        """It gets its blocks and waits for KV from another engine before it runs for the first time."""
        self.prompt_length = prompt_length
        self.target_length = target_length
        """Length at which it finishes."""
        self.hashes = hashes
        """Hashes of its full blocks, as far as they are known."""
        self.keys: list[Key] = []
        """Its leading blocks that are in the prefix cache."""
        self.cached_tokens: int | None = None
        """Prompt tokens that are not computed: found in the prefix cache when it was first scheduled, or fetched since
        (`EngineModel.fetched`). None = not scheduled yet."""
        self.transfer_tokens: int | None = None
        """Prompt tokens whose KV has to come from another engine; None = nothing, or not known yet."""
        self.preemptions = 0
        self.state = SequenceState.WAITING
        self.scheduled_ms: float | None = None
        self.first_token_ms: float | None = None
        """When its first token was there."""
        self.preempted_ms: float | None = None
        """When it was preempted, for the first time since its last token; None once it has the next one."""
        # These three hold only while it does not decode.
        self.still_length = prompt_length
        self.still_computed = 0
        self.still_blocks = 0
        self.decoders: StepCount | None = None
        self.offset = 0
        self.serial = 0

    @property
    def length(self) -> int:
        """Tokens of the prompt and of what was generated so far."""
        decoders = self.decoders
        return self.still_length if decoders is None else self.offset + decoders.ticks

    @property
    def computed(self) -> int:
        """Leading tokens whose KV is there."""
        decoders = self.decoders
        return self.still_computed if decoders is None else self.offset + decoders.ticks - 1

    @property
    def blocks(self) -> int:
        """KV blocks that it holds."""
        decoders = self.decoders
        return self.still_blocks if decoders is None else -(-(self.offset + decoders.opened - 1) // decoders.block_size)

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return self.length - self.prompt_length

    @property
    def lora_name(self) -> str | None:
        """Its adapter."""
        return None

    @property
    def hashable_blocks(self) -> int:
        """Blocks that can get a hash once they are full."""
        return len(self.hashes)

    def know_hashes(self, blocks: int, block_size: int) -> None:
        """See to it that `hashes` covers that many full blocks, `hashable_blocks` at most."""

    def stored(self, first: int, last: int, block_size: int) -> BlockStored:
        """The event that its blocks `first` to `last` (exclusive) became reusable."""
        raise NotImplementedError

    def write(self, output_ids: Hashes[int]) -> int:
        """Append the next token and return it, where `writes_tokens`."""
        raise NotImplementedError
