"""MaskedSink: an answer in which a secret of ours does not go on, should the upstream repeat it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pointsman.edge.wire.errors import UpstreamError
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.response_sink import ResponseSink

SHORTEST_BYTES = 8
"""Shorter secrets would be found in any text."""


def forms_of(secret: bytes) -> tuple[bytes, ...]:
    """How a secret may stand in an answer: as it is, and as JSON writes it. Empty for one that is too short."""
    if len(secret) < SHORTEST_BYTES:
        return ()
    escaped = msgspec.json.encode(secret.decode("latin-1"))[1:-1]
    return (secret,) if escaped == secret else (secret, escaped)


def masked(data: bytes, forms: tuple[bytes, ...]) -> bytes:
    """With stars in the place of a secret, as many as it has bytes."""
    for form in forms:
        if form in data:
            data = data.replace(form, b"*" * len(form))
    return data


class MaskedSink:
    """Puts stars in the place of a secret, as many as it has bytes, so that lengths hold; fields with it are dropped.

    What could be its beginning at the end of a piece is kept until the next one; events end with line breaks, which no
    secret holds, so streams are not held up.
    """

    __slots__ = ("_forms", "_kept", "_longest", "_on_chunk", "_sink")

    def __init__(self, sink: ResponseSink, forms: tuple[bytes, ...]) -> None:
        self._sink = sink
        self._forms = forms
        self._longest = max(map(len, forms))
        self._kept = b""
        self._on_chunk: Callable[[bytes, bytes], None] | None = getattr(sink, "on_chunk", None)

    def on_head(self, status: int, headers: Headers) -> None:
        """Without the fields that hold it."""
        for form in self._forms:
            if any(form in value for _, value in headers):
                headers = tuple(field for field in headers if form not in field[1])
        self._sink.on_head(status, headers)

    def on_chunk(self, data: bytes, framed: bytes) -> None:
        """As it came, where there is nothing to hide."""
        if self._on_chunk is None or self._kept or self._concerns(data):
            self.on_data(data)
        else:
            self._on_chunk(data, framed)

    def on_data(self, data: bytes) -> None:
        """Masked, and without what may be its beginning."""
        data = masked(self._kept + data if self._kept else data, self._forms)
        cut = len(data) - self._beginning(data)
        self._kept = data[cut:]
        if cut:
            self._sink.on_data(data[:cut])

    def on_end(self) -> None:
        """What was kept was not the secret."""
        if self._kept:
            rest, self._kept = self._kept, b""
            self._sink.on_data(rest)
        self._sink.on_end()

    def on_error(self, error: UpstreamError) -> None:
        """It breaks off."""
        self._sink.on_error(error)

    def _concerns(self, data: bytes) -> bool:
        return any(form in data for form in self._forms) or self._beginning(data) > 0

    def _beginning(self, data: bytes) -> int:
        """Bytes at the end that a form may begin with."""
        longest = 0
        start = max(0, len(data) - self._longest + 1)
        for form in self._forms:
            at = data.find(form[:1], start)
            while at >= 0:
                if form.startswith(data[at:]):
                    longest = max(longest, len(data) - at)
                    break
                at = data.find(form[:1], at + 1)
        return longest
