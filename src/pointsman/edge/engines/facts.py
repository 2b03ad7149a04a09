"""EngineFacts: what was found out about an engine by asking it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.core.model.kv_shape import KvShape
from pointsman.core.model.migration import Mechanism
from pointsman.core.model.worker import Role

DISPLAY_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "llamacpp": "llama.cpp",
    "openai": "OpenAI-compatible server",
}

CACHED_TOKENS_OFF = "cached_tokens off"
"""How the hint begins that the engine does not report what it took from its cache."""


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """Where one rank publishes KV events, in the engine's own words: a wildcard host means the engine's host."""

    rank: int
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    connects: bool = False
    """The engine's socket is known to connect there instead of listening."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine can do. `None`: it could not be found out."""

    chat: bool | None = None
    completions: bool | None = None
    embeddings: bool | None = None
    responses: bool | None = None
    tokenize: bool | None = None
    token_id_prompts: bool | None = None
    """Completions take token ids as `prompt`."""
    stream_usage: bool | None = None
    """Understands `stream_options.include_usage`."""
    cached_tokens: bool | None = None
    """Reports `usage.prompt_tokens_details.cached_tokens`."""
    migration: Mechanism = Mechanism.REPLAY
    """How a stream that it broke off can go on at another one."""
    load: bool = False
    """Tells how many requests run and wait."""
    kv_events: tuple[KvEventSource, ...] | None = None
    """Empty: switched off."""
    rank_header: str | None = None
    """Request header that chooses the data-parallel rank."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine is. `None` means unknown, never zero."""

    kind: str
    version: str | None
    models: tuple[str, ...]
    """Names that requests may use, LoRA adapters included."""
    lora: tuple[str, ...] = ()
    """Those of them that are LoRA adapters."""
    tokenizer: str | None = None
    """Directory or repository from which it says that it took its tokenizer, or its model."""
    ranks: tuple[int, ...] = (0,)
    max_context_tokens: int | None = None
    block_size_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    """Of one rank."""
    max_batch: int | None = None
    """Sequences that one rank computes at once."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    kv: KvShape | None = None
    """How it passes KV on; None: not at all, as far as it tells."""
    role: Role | None = None
    """The only stage that it was started for; None: it does not say, or computes all."""
    hints: tuple[str, ...] = ()
    """What is switched off and how to switch it on."""

    def describe(self) -> str:
        """One line for people: what was found, and what could be switched on."""
        found = ", ".join(self._found())
        return "; ".join([found, *self.hints])

    def _found(self) -> list[str]:
        parts = [" ".join(filter(None, [DISPLAY_NAMES.get(self.kind, self.kind), self.version]))]
        parts.append(self._models_text())
        if len(self.ranks) > 1:
            parts.append(f"{len(self.ranks)} data-parallel ranks")
        if self.kv_capacity_tokens and self.block_size_tokens:
            blocks = self.kv_capacity_tokens // self.block_size_tokens
            parts.append(f"{blocks} blocks of {self.block_size_tokens} tokens")
        elif self.kv_capacity_tokens:
            parts.append(f"KV cache of {self.kv_capacity_tokens} tokens")
        if self.max_context_tokens:
            parts.append(f"context {self.max_context_tokens}")
        if self.max_batch:
            parts.append(f"up to {self.max_batch} at once")
        sources = self.capabilities.kv_events
        if sources:
            parts.append("KV events on " + " ".join(source.endpoint for source in sources))
        if self.kv is not None and (self.kv.gives or self.kv.takes):
            parts.append(f"passes KV on ({self.kv.handshake})")
        return parts

    def _models_text(self) -> str:
        base = [name for name in self.models if name not in self.lora]
        text = f"model{'s' if len(base) != 1 else ''} {' '.join(base) or 'none'}"
        return f"{text}, LoRA {' '.join(self.lora)}" if self.lora else text
