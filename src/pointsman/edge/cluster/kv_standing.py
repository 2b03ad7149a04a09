"""KvStanding: what one worker's view is worth, told to the ledger and the log whenever that changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pointsman.core.ledger.events import KvFeedChanged, KvFeedState
from pointsman.core.model.worker import WorkerId

_log = logging.getLogger("pointsman.cluster")

WHOLE = "everything since the engine's start, or since it was cleared, was applied"
_LEVELS = {
    KvFeedState.OFF: logging.WARNING,
    KvFeedState.SYNCING: logging.DEBUG,
    KvFeedState.PARTIAL: logging.WARNING,
    KvFeedState.COMPLETE: logging.INFO,
}
_UNANSWERED, _HISTORY, _CONTENT = "unanswered", "history", "content"


class KvStanding:
    """Collects the doubts about a view, in the order in which batches are applied."""

    def __init__(
        self, worker: WorkerId, emit: Callable[[KvFeedChanged], None], now_ms: Callable[[], float], hint: str = ""
    ) -> None:
        self._worker = worker
        self._hint = f" ({hint})" if hint else ""
        self._emit = emit
        self._now_ms = now_ms
        self._doubts: dict[str, str] = {}
        self._state = KvFeedState.OFF
        self._reason = ""
        self._since_ms = now_ms()

    @property
    def state(self) -> KvFeedState:
        """What was last told."""
        return self._state

    @property
    def reason(self) -> str:
        """Why it is so."""
        return self._reason

    @property
    def since_ms(self) -> float:
        """Since when the state is what it is."""
        return self._since_ms

    # ---- what happens

    def syncing(self, reason: str) -> None:
        """The view is not to be used until `settle`."""
        self._say(KvFeedState.SYNCING, reason)

    def off(self, reason: str, *, expected: bool = False) -> None:
        """There are no events. `expected`: nothing is wrong with that."""
        self._say(KvFeedState.OFF, reason, logging.DEBUG if expected else logging.WARNING)

    def anew(self) -> None:
        """All is told from its beginning."""
        self._doubts.clear()

    def doubt_history(self, reason: str) -> None:
        """Something before what is known is not known."""
        self._doubts[_HISTORY] = reason

    def doubt_unanswered(self, reason: str) -> None:
        """Nobody could tell whether something is missing; an empty reason: now one can."""
        self._doubts.pop(_UNANSWERED, None)
        if reason:
            self._doubts[_UNANSWERED] = reason

    def doubt_content(self, reason: str) -> None:
        """Something that was told could not be used."""
        self._doubts[_CONTENT] = reason

    def cleared_by_engine(self) -> None:
        """The engine holds nothing, by its own word: from here on everything is known."""
        self._doubts.clear()
        if self._state is KvFeedState.COMPLETE:
            # Whoever counts what is worth doubting begins anew with it too.
            self._tell()

    def settle(self) -> None:
        """Nothing is under way: tell what the view is worth."""
        if not self._doubts and self._state is KvFeedState.COMPLETE:
            return
        reason = next((self._doubts[kind] for kind in (_HISTORY, _CONTENT, _UNANSWERED) if kind in self._doubts), None)
        if reason is None:
            self._say(KvFeedState.COMPLETE, WHOLE + self._hint)
        else:
            self._say(KvFeedState.PARTIAL, reason + self._hint)

    # ---- inside

    def _say(self, state: KvFeedState, reason: str, level: int | None = None) -> None:
        if (state, reason) == (self._state, self._reason):
            return
        if state is not self._state:
            self._since_ms = self._now_ms()
        self._state, self._reason = state, reason
        self._tell()
        _log.log(_LEVELS[state] if level is None else level, "KV events of %s: %s: %s", self._worker, state, reason)

    def _tell(self) -> None:
        self._emit(KvFeedChanged(self._worker, self._now_ms(), self._state, self._reason))
