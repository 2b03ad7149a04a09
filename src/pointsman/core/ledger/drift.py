"""Drift: cached tokens as predicted at dispatch against those that the engine reports, for one worker."""

from __future__ import annotations

from dataclasses import dataclass

_WINDOW_TOKENS = 200_000.0
"""Prompt tokens after which an old request counts for a third."""
ENOUGH_TOKENS = 2_000.0
"""Below that many prompt tokens nothing is said."""
LARGE = 0.1
"""From this share of the prompt tokens on there is a reason to look for."""
_WOULD_TELL = "KV events would tell"
_PARTLY = "its KV events could be relied on for a part of the requests only"


@dataclass(slots=True)
class Drift:
    """Sums over a window that forgets. Only requests whose engine reported cached tokens are in it."""

    prompt_tokens: float = 0.0
    predicted_tokens: float = 0.0
    reported_tokens: float = 0.0
    exact_tokens: float = 0.0
    """Prompt tokens of requests that were predicted by the engine's own word."""

    def observe(self, prompt_tokens: int, predicted_tokens: int, reported_tokens: int, exact: bool) -> None:
        """A request finished."""
        keep = 1.0 / (1.0 + prompt_tokens / _WINDOW_TOKENS)
        self.prompt_tokens = self.prompt_tokens * keep + prompt_tokens
        self.predicted_tokens = self.predicted_tokens * keep + predicted_tokens
        self.reported_tokens = self.reported_tokens * keep + reported_tokens
        self.exact_tokens = self.exact_tokens * keep + exact * prompt_tokens

    @property
    def share(self) -> float | None:
        """(predicted − reported) / prompt tokens; above 0 too much was believed. None: not enough was seen."""
        if self.prompt_tokens < ENOUGH_TOKENS:
            return None
        return (self.predicted_tokens - self.reported_tokens) / self.prompt_tokens

    def reason(self, announces: bool) -> str | None:
        """The likely reason of a large drift; None when it is small.

        Args:
            announces: the worker sends KV events. They may not have been relied on all the time.
        """
        share = self.share
        if share is None or abs(share) < LARGE:
            return None
        exact = self.exact_tokens > self.prompt_tokens / 2
        if share > 0:
            return self._too_much(exact, announces)
        return self._too_little(exact, announces)

    def _too_much(self, exact: bool, announces: bool) -> str:
        if self.reported_tokens == 0:
            return "the engine reports no cached token at all: its prefix caching may be off"
        if exact:
            return (
                "the engine reuses less than its KV events say: it may salt its cache, or count cached tokens otherwise"
            )
        evicts = "the engine evicts earlier than assumed, or others fill its cache"
        return f"{evicts}: {_PARTLY if announces else _WOULD_TELL}"

    def _too_little(self, exact: bool, announces: bool) -> str:
        if self.predicted_tokens == 0:
            return (
                "nothing was ever predicted although the engine reuses: its tokenizer, chat template or block size "
                "differs from the router's"
                if exact
                else "nothing was ever predicted although the engine reuses: others send it the same prompts"
            )
        if exact:
            return "KV events are late or incomplete, or chat template and tokenizer differ in places"
        if announces:
            return f"it keeps prompts of before its KV events were heard, or of others: {_PARTLY}"
        return f"others send it prompts that it keeps: {_WOULD_TELL}"
