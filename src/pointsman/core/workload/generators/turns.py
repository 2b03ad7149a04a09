"""Conversations that grow: each prompt is all that was said before and something new."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pointsman.core.workload.prompt_tree import PromptNode
from pointsman.core.workload.trace import TraceRequest

NOMINAL_TTFT_MS = 500.0
NOMINAL_TPOT_MS = 20.0
"""A made trace knows no answer times. Its `at_ms` of later turns are what they would be at these; replayed, requests
come `gap_ms` after the real answers."""


@dataclass(slots=True)
class Conversation:
    """One session. `requests` collects the requests of all sessions; positions in it are what `after` means."""

    session: str
    at_ms: float
    """When the next request comes, nominally."""
    node: PromptNode
    """What has been said."""
    requests: list[TraceRequest]
    gap_ms: float = 0.0
    _last: int | None = None
    _pieces: Iterator[int] = field(default_factory=lambda: iter(range(1 << 62)))

    def add(self, tokens: int) -> None:
        """Something of this session's own is appended to the prompt."""
        self.node = self.node.then((self.session, next(self._pieces)), tokens)

    def ask(self, output_tokens: int) -> None:
        """A request with all that was said, whose answer is then part of it."""
        answer = self.node.then((self.session, next(self._pieces)), output_tokens)
        request = self.node.request(
            self.at_ms, output_tokens, answer=answer, session=self.session, after=self._last, gap_ms=self.gap_ms
        )
        self.requests.append(request)
        self._last = len(self.requests) - 1
        self.node = answer
        self.at_ms += NOMINAL_TTFT_MS + NOMINAL_TPOT_MS * output_tokens
        self.gap_ms = 0.0

    def wait(self, gap_ms: float) -> None:
        """Thinking or a tool takes time before the next request."""
        self.gap_ms += gap_ms
        self.at_ms += gap_ms
