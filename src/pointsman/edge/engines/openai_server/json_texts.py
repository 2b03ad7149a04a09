"""JSON strings of the texts of tokens."""

from __future__ import annotations

import msgspec

_MOST_KNOWN = 10_000


class JsonTexts:
    """JSON strings of token texts, encoded once each."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def of(self, text: str) -> bytes:
        """The text as a JSON string."""
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[text] = msgspec.json.encode(text)
        return found
