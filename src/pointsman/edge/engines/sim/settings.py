"""What a simulated engine is started with."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import Profile
from pointsman.edge.engines.openai_server.event_publisher import EventSettings
from pointsman.edge.traces.profile_file import load_profile
from pointsman.edge.wire.kv_events import EventForm

_BUDGET_TOKENS = 8192
_CONTEXT_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class SimSettings:
    """One simulated engine."""

    model: str = "sim"
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free one."""
    profile: str = "instant"
    block_size: int = 16
    num_blocks: int | None = None
    """KV blocks; None = as many as the profile's GPU holds."""
    max_num_seqs: int = 256
    max_batched_tokens: int | None = None
    """Token budget of a step; None = 8,192, or `max_num_seqs` if that is more."""
    max_model_len: int | None = None
    """Prompt and answer together; None = 32,768 tokens, or what the KV cache holds if that is less."""
    prefix_caching: bool = True
    speedup: float = 1.0
    """Modelled milliseconds that pass in one real millisecond."""
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
    loras: tuple[str, ...] = ()
    """Names of adapters that requests may use as their model."""
    default_output_tokens: int = 128
    """Length of an answer whose request sets none; it ends with finish_reason `stop`, as if the model had ended it."""
    seed: int = 0
    """For what is drawn at random: which events a fault drops, duplicates or reorders."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model: a simulated engine needs a model name")
        if self.speedup <= 0:
            raise ConfigError(f"speedup must be above 0, not {self.speedup:g}")
        if self.default_output_tokens < 1:
            raise ConfigError(f"default_output_tokens must be at least 1, not {self.default_output_tokens}")
        self.events()
        if self.model in self.loras:
            raise ConfigError(f"loras: {self.model!r} is the name of the base model; give the adapter another one")

    def events(self) -> EventSettings:
        """How KV events are published. Raises ConfigError."""
        return EventSettings(
            self.kv_events, self.replay, self.topic, self.event_form, self.replay_batches, self.dp_rank
        )

    def speed(self) -> Profile:
        """The profile, by name or file. Raises ConfigError."""
        return load_profile(self.profile)

    def engine_config(self, output_ids: tuple[int, ...]) -> EngineConfig:
        """Configuration of the engine model; `ConfigError` where the numbers don't fit together."""
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, not {self.block_size}")
        speed = self.speed()
        blocks = self.num_blocks if self.num_blocks is not None else speed.num_blocks(self.block_size)
        budget = self.max_batched_tokens
        context = self.max_model_len
        return EngineConfig(
            step=speed.step,
            num_blocks=blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=max(_BUDGET_TOKENS, self.max_num_seqs) if budget is None else budget,
            max_model_len=min(_CONTEXT_TOKENS, blocks * self.block_size) if context is None else context,
            prefix_caching=self.prefix_caching,
            output_ids=output_ids,
        )
