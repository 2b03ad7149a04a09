"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations


class StopScanner:
    """Passes text on as soon as it can't be the beginning of a stop string any more."""

    __slots__ = ("_held", "_hold", "_include", "_stops", "found")

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._hold = max(map(len, stops), default=1) - 1
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def feed(self, piece: str) -> str:
        """Add a piece; returns text that may go out. After `found` is set nothing more comes."""
        old, text = len(self._held), self._held + piece
        # Not what ended before this piece: it has been looked for, or was passed over.
        hits = [(text.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self._stops]
        hits = [hit for hit in hits if hit[0] >= 0]
        if hits:
            position, self.found = min(hits)
            self._held = ""
            return text[: position + len(self.found)] if self._include else text[:position]
        return self._pass_on(text)

    def skip(self, piece: str) -> str:
        """Add a piece in which no stop string may end, though one may begin; returns text that may go out."""
        return self._pass_on(self._held + piece)

    def flush(self) -> str:
        """The text is complete: what was still held back."""
        held, self._held = self._held, ""
        return held

    def _pass_on(self, text: str) -> str:
        keep = min(self._hold, len(text))
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]
