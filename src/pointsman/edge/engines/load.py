"""LoadReading: what one rank of an engine says of its own load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReading:
    """One reading. `None`: the engine does not tell, which is not zero. It is 50 ms to seconds old when read."""

    rank: int
    running: int
    """Sequences in its batch."""
    waiting: int
    """Requests in its queue."""
    kv_use: float | None = None
    """Share of the KV cache that running requests hold, 0 to 1."""
    kv_capacity_tokens: int | None = None
    computed_tokens_total: int | None = None
    """Prompt tokens that it computed since it started."""
    cached_tokens_total: int | None = None
    """Prompt tokens that it took from a cache, its own or a remote one, since it started."""
    generated_tokens_total: int | None = None
    """Tokens of answers that it generated since it started."""
    preemptions_total: int | None = None
    started_s: float | None = None
    """When its process started, Unix time."""

    gpu_use: float | None = None
    """How busy it was lately, 0 to 1."""
    running_adapters: frozenset[str] | None = None
    """LoRA adapters that requests in its batch use."""
    most_adapters: int | None = None
    """That are on its GPU at once."""

    @property
    def would_show_restart(self) -> bool:
        """True if it holds something that another process would tell otherwise."""
        told = (self.started_s, self.computed_tokens_total, self.cached_tokens_total, self.preemptions_total)
        return any(value is not None for value in told)

    def shows_restart_since(self, earlier: LoadReading) -> bool:
        """True if counters went back, or the process is another one: what was cached then is gone."""
        if self.started_s is not None and earlier.started_s is not None and self.started_s > earlier.started_s + 1.0:
            return True
        pairs = (
            (self.computed_tokens_total, earlier.computed_tokens_total),
            (self.cached_tokens_total, earlier.cached_tokens_total),
            (self.preemptions_total, earlier.preemptions_total),
        )
        return any(now is not None and before is not None and now < before for now, before in pairs)
