"""TokenRatio: bytes of prompt a token, learned from what engines report."""

from __future__ import annotations

PRIOR_BYTES_PER_TOKEN = 4.0
"""English text with common tokenizers; JSON around it makes short prompts look longer."""
_WINDOW_TOKENS = 100_000.0


class TokenRatio:
    """Ratio of sums over a window that forgets: recent prompts count most, long ones more than short ones."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._bytes = 0.0

    @property
    def bytes_per_token(self) -> float:
        """The learned ratio, or the prior before anything was seen."""
        return self._bytes / self._tokens if self._tokens else PRIOR_BYTES_PER_TOKEN

    def observe(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """A finished request told how many tokens its prompt had."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        keep = 1.0 / (1.0 + prompt_tokens / _WINDOW_TOKENS)
        self._tokens = self._tokens * keep + prompt_tokens
        self._bytes = self._bytes * keep + prompt_bytes

    def tokens(self, prompt_bytes: int) -> int:
        """Tokens that a prompt of so many bytes probably has."""
        return round(prompt_bytes / self.bytes_per_token)
