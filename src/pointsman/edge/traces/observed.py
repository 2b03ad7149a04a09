"""What a file of results says that was measured of each request, beside the trace of what was asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observed:
    """Times of one request that a fleet served, in ms on the clock of its trace; None: the file does not say."""

    arrival_ms: float
    """When it came to whoever measured: the engine's queue, or the client that sent it."""
    first_token_ms: float | None
    last_token_ms: float | None
    prompt_tokens: int
    output_tokens: int
    """Tokens that came, which can be fewer than were asked for."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the engine did not compute again."""
    worker: str | None = None
    scheduled_ms: float | None = None
    """When the engine took it out of its queue."""
    itl_ms: tuple[float, ...] = ()
    """Times between tokens that followed one another; chunks of a stream, where the client can't see tokens."""

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_ms is None else self.first_token_ms - self.arrival_ms

    @property
    def e2e_ms(self) -> float | None:
        """From arrival to the last token."""
        return None if self.last_token_ms is None else self.last_token_ms - self.arrival_ms

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of an output token after the first; None with fewer than two."""
        if self.first_token_ms is None or self.last_token_ms is None or self.output_tokens < 2:
            return None
        return (self.last_token_ms - self.first_token_ms) / (self.output_tokens - 1)
