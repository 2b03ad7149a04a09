"""ResponseSink: who takes an upstream's answer."""

from __future__ import annotations

from typing import Protocol

from pointsman.edge.wire.errors import UpstreamError
from pointsman.edge.wire.headers import Headers


class ResponseSink(Protocol):
    """Takes one answer. Exactly one of `on_end` and `on_error` ends it, and none comes after `abort()`."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Status and headers of the final answer."""

    def on_data(self, data: bytes) -> None:
        """Body bytes without chunk framing, at most one call for each read of the socket."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_error(self, error: UpstreamError) -> None:
        """The answer can't be completed."""


class ChunkSink(ResponseSink, Protocol):
    """A sink that can pass chunks on as they are framed, so that nobody has to frame them anew."""

    def on_chunk(self, data: bytes, framed: bytes) -> None:
        """Instead of `on_data`, when a read was one whole chunk and nothing else: `framed` is what was read."""
