"""Stop strings over the seam of a stream that went on elsewhere: one may have begun before it."""

from __future__ import annotations


class SeamStops:
    """Passes text on as soon as no stop string can begin in it any more.

    Args:
        said: text that the client has.
        held: text generated before the seam that the client has not, since a stop string may begin in it.
        include: a stop string belongs to the answer.
    """

    def __init__(self, stops: tuple[str, ...], said: str, held: str, *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._hold = max(map(len, stops), default=1) - 1
        before = said[-self._hold :] if self._hold else ""
        self._window = before + held
        self._out = len(before)
        """Characters of the window that are out."""
        self.found: str | None = None
        """The stop string that ended the text; nothing comes after it."""

    def feed(self, text: str) -> str:
        """More text; returns what may go out."""
        searched = max(0, len(self._window) - self._hold)
        self._window += text
        hits = [(self._window.find(stop, searched), stop) for stop in self._stops]
        hits = [hit for hit in hits if hit[0] >= 0]
        if hits:
            position, self.found = min(hits)
            return self._window[self._out : position + (len(self.found) if self._include else 0)]
        return self._take(max(self._out, len(self._window) - self._hold))

    def flush(self) -> str:
        """The text is complete."""
        return self._take(len(self._window))

    def _take(self, end: int) -> str:
        text = self._window[self._out : end]
        kept = max(0, len(self._window) - self._hold) if self._hold else len(self._window)
        kept = min(kept, end)
        self._window = self._window[kept:]
        self._out = end - kept
        return text
