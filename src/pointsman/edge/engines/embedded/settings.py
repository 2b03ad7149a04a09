"""What an embedded engine is started with."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.engines.embedded.kv_blocks import SPAN_TOKENS
from pointsman.edge.engines.embedded.loaded_model import DEFAULT_MODEL
from pointsman.edge.engines.embedded.model_config import ModelConfig
from pointsman.edge.engines.embedded.transfer_settings import USUAL_TRANSFERS, TransferSettings
from pointsman.edge.engines.openai_server.event_publisher import EventSettings
from pointsman.edge.wire.kv_events import EventForm

_KV_BYTES = 512 * 2**20
_MOST_BLOCKS = 4096
_LEAST_BLOCKS = 64
_BUDGET_TOKENS = 256
_UNTIMED = StepCoefficients(0.0, 0.0, 0.0, 0.0)
"""Steps take the time that they take."""


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """One embedded engine."""

    model: str = DEFAULT_MODEL
    """`seed:N`, a Hugging Face directory or a GGUF file."""
    served_name: str | None = None
    """Name that requests use; None: the model's own."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free one."""
    block_size: int = 16
    """Tokens a KV block: 1, 2, 4 … 64."""
    num_blocks: int | None = None
    """KV blocks; None = what 512 MiB hold, from 64 to 4,096."""
    max_num_seqs: int = 64
    max_batched_tokens: int | None = None
    """Token budget of a step; None = 256, or `max_num_seqs` if that is more."""
    max_model_len: int | None = None
    """Prompt and answer together; None = what the model knows, or the KV cache holds if that is less."""
    prefix_caching: bool = True
    kv_events: str | None = None
    """ZMQ endpoint of KV events, for example `tcp://127.0.0.1:5557`; port `*` = any free one. None = no events."""
    replay: str | None = None
    """ZMQ endpoint of the replay service."""
    topic: str = ""
    event_form: EventForm = EventForm.MAP
    replay_batches: int = 10_000
    """Batches kept for replay."""
    dp_rank: int = 0
    """Data-parallel rank that events and metrics carry."""
    threads: int = 1
    """Threads of the matrix library."""
    seed: int | None = None
    """From which requests without a seed of their own get theirs; None: from chance."""

    transfer: TransferSettings | None = USUAL_TRANSFERS
    """How it moves KV to and from other engines; None: not at all."""

    def __post_init__(self) -> None:
        if self.block_size < 1 or SPAN_TOKENS % self.block_size:
            raise ConfigError(f"block_size is {self.block_size}: it must divide {SPAN_TOKENS}")
        if self.served_name == "":
            raise ConfigError("served_name: an empty name can't be asked for")
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1, not {self.threads}")
        self.events()

    def events(self) -> EventSettings:
        """How KV events are published. Raises ConfigError."""
        return EventSettings(
            self.kv_events, self.replay, self.topic, self.event_form, self.replay_batches, self.dp_rank
        )

    def engine_config(self, model: ModelConfig) -> EngineConfig:
        """For one model; `ConfigError` where the numbers don't fit together."""
        blocks = self.num_blocks
        if blocks is None:
            block_bytes = 2 * 4 * model.layers * model.kv_heads * model.head_dim * self.block_size
            blocks = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, _KV_BYTES // block_bytes))
        budget, context = self.max_batched_tokens, self.max_model_len
        if context is not None and context > model.positions:
            raise ConfigError(f"max_model_len is {context}, and the model knows {model.positions} positions; lower it")
        return EngineConfig(
            step=_UNTIMED,
            num_blocks=blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=max(_BUDGET_TOKENS, self.max_num_seqs) if budget is None else budget,
            max_model_len=min(model.positions, blocks * self.block_size) if context is None else context,
            prefix_caching=self.prefix_caching,
        )
