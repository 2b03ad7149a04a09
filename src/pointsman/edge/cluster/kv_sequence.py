"""KvSequence: in which order batches of KV events are applied, what is missing, and what the view is then worth.

Pure: it is told what came from the live socket and from replays, and answers with steps for whoever owns the sockets.
Its promise: while `syncing` is False, no block is in a view whose removal or loss could have been noticed.

A replay is asked for from the last applied batch on, not from the one after it: if that one comes back different, or
not at all, another process answers there, and everything known is void.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELD_BATCHES: Final = 20_000
HELD_BYTES: Final = 64 * 1024 * 1024
RECENT_BATCHES: Final = 64
"""So far back a batch that comes again is recognised by its content; an older one counts as a restart."""
FRUITLESS_REPLAYS: Final = 3
"""So many replays without progress mean that the engine does not have what is missing."""

_RESTARTED = "the engine restarted"
_BROKEN = "the connection to the engine's events broke"


@dataclass(frozen=True, slots=True)
class Apply:
    """This batch is next."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Clear:
    """Nothing of what was applied can be relied on any more."""

    anew: bool = False
    """Everything is told once more, or another process is there: no doubt of before holds."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A replay from `start_seq` on is needed; what it brings is handed over with its `turn`. Earlier turns are void."""

    start_seq: int
    turn: int


@dataclass(frozen=True, slots=True)
class Syncing:
    """From here until the sequence is not `syncing` any more, the view is not to be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something before what is known from here on is not known. An empty reason: nobody could tell, and now one can."""

    reason: str
    unanswered: bool = False
    """It is only that nobody could tell."""


Step = Apply | Clear | Ask | Syncing | Doubt
"""To be done in this order."""


@dataclass(slots=True)
class SequenceCounts:
    """What happened so far."""

    gaps: int = 0
    """Times that batches were missing."""
    losses: int = 0
    """Times that they could not be had any more."""
    replays: int = 0
    restarts: int = 0
    duplicates: int = 0


class KvSequence:
    """The sequence of one engine rank.

    With `replay` False nothing can be asked for: an `Ask` is then to be answered with `replay_failed` after a moment in
    which late batches may still come.
    """

    def __init__(self, *, replay: bool = True, held_batches: int = HELD_BATCHES, held_bytes: int = HELD_BYTES) -> None:
        self.counts = SequenceCounts()
        self.syncing = True
        """True while something is missing or has to be looked at."""
        self._replay = replay
        self._max_batches = held_batches
        self._max_bytes = held_bytes
        self._steps: list[Step] = []
        self._next: int | None = None
        """The batch to apply next; None: whichever comes first."""
        self._recent: dict[int, int] = {}
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._highest_held = 0
        self._connected = False
        self._started = False
        self._unsure = False
        """Batches may have gone by unseen."""
        self._turn = 0
        self._asked: int | None = None
        self._first_reply = True
        self._next_when_asked: int | None = None
        self._fruitless = 0
        self._let_go = False
        """Batches came that could not be kept: they are to be asked for, or are lost."""
        self._unanswered = False
        """Nobody could tell whether something is missing."""
        self._curable = False
        """Something was lost because a replay failed, and the engine may have it still."""
        self._doubted = self._all_asked = False
        """Somebody said that something does not fit, and everything was asked for because of that."""
        self._heard = False
        """It is known where the sequence stands, or that it can't be known."""

    @property
    def next_seq(self) -> int | None:
        """The sequence number that is expected; None: any."""
        return self._next

    @property
    def asking(self) -> bool:
        """True while a replay is under way."""
        return self._asked is not None

    # ---- from the live socket

    def connected(self) -> list[Step]:
        """The subscription stands, and all that came before a break was handed over: ask what went by meanwhile."""
        self._connected = True
        if not self._started:
            self._begin("asking for what came before")
        elif self._replay:
            self._ask()
        elif self._unsure:
            self._lose(f"{_BROKEN}, and without replay_endpoint what came meanwhile is not known")
        self._finish()
        return self._taken()

    def disconnected(self) -> list[Step]:
        """The connection broke: nobody knows what is missed, and who will be there, until it is back."""
        self._connected = False
        self._unsure = self._started
        self._void_replay()
        self._sync(_BROKEN)
        return self._taken()

    def live(self, seq: int, payload: bytes) -> list[Step]:
        """A batch came."""
        if not self._started:
            if self._replay:
                return []  # the first replay brings it
            self._begin("the subscription stands")
        if self._unsure:
            self._wait_for_proof(seq, payload)
            return self._taken()
        if self._next is None:
            self._adopt(seq)
        assert self._next is not None
        if seq == self._next:
            if seq == 0 and self._held:
                self._distrust_held()
            self._apply(seq, payload)
            self._drain()
            self._finish()
        elif seq > self._next:
            self._hold(seq, payload)
        elif self._recent.get(seq) == hash(payload):
            self.counts.duplicates += 1
        else:
            self._restarted(seq, payload)
        return self._taken()

    def verify(self) -> list[Step]:
        """After a long silence: ask whether anything was missed."""
        if self._replay and self._connected and self._asked is None:
            self._ask(from_start=self._curable)
        return self._taken()

    def doubt(self) -> list[Step]:
        """What was applied does not fit together: ask who is there, and if that was of no use, for everything anew.

        An engine that keeps its events from the first one on heals the view; else nothing changes.
        """
        if self._replay and self._connected and self._asked is None:
            if self._doubted and not self._all_asked:
                self._all_asked = self._curable = True
            self._doubted = True
            self._ask(from_start=self._curable)
        return self._taken()

    # ---- from a replay

    def replayed(self, turn: int, seq: int, payload: bytes) -> list[Step]:
        """A replay brought a batch."""
        if self._asked is None or turn != self._turn:
            return []
        first, self._first_reply = self._first_reply, False
        if first and self._curable and self._asked == 0:
            self._curable = False
            if seq > 0:
                self._void_replay()
                return []
            self._steps.append(Clear(anew=True))
            self._next = 0
            self._recent.clear()
            self._sync("the engine still has everything: applying it anew")
        if first and seq > self._asked and (self._next is None or seq >= self._next):
            self._lose(f"the engine keeps its events only from {seq} on, and {self._asked} was needed", begin_at=seq)
        if self._next is None:
            self._next = seq
        if seq == self._next:
            self._apply(seq, payload)
        elif seq > self._next:
            # Engines drop some of a long replay when their socket is full: the next replay brings them.
            self._keep(seq, payload)
        elif self._recent.get(seq, hash(payload)) != hash(payload):
            self._restart()
        return self._taken()

    def replay_ended(self, turn: int, *, whole: bool = True) -> list[Step]:
        """A replay is over. `whole` False: it brought more than can be kept, and the rest is to be asked for."""
        if self._asked is None or turn != self._turn:
            return []
        asked, self._asked = self._asked, None
        if self._first_reply and (self._next_when_asked or 0) > asked:
            self._restart()
            return self._taken()
        self._unsure = False
        self._answered()
        self._drain()
        if self._held or self._let_go or not whole:
            self._ask_again()
        self._finish()
        return self._taken()

    def replay_failed(self, turn: int, reason: str) -> list[Step]:
        """A replay did not come, after all attempts."""
        if self._asked is None or turn != self._turn:
            return []
        self._asked = None
        if self._held or self._let_go or self._unsure:
            self._lose(reason)
            self._curable = self._replay
        elif self._replay:
            self._unanswered = self._heard = True
            self._steps.append(Doubt(reason, unanswered=True))
        self._finish()
        return self._taken()

    # ---- inside

    def _taken(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps

    def _begin(self, reason: str) -> None:
        """From nothing: the whole history is wanted."""
        self._started = True
        self._forget_held()
        self._fruitless = 0
        self._let_go = False
        self._recent.clear()
        self._asked = None
        self._unsure = self._unanswered = self._heard = self._curable = False
        self._doubted = self._all_asked = False
        if self._replay:
            self._next = 0
            self._sync(reason)
            self._ask()
        else:
            self._next = None
            self._sync(f"{reason}: no events so far, and without replay_endpoint none of before")

    def _restart(self) -> None:
        self.counts.restarts += 1
        self._steps.append(Clear(anew=True))
        self._begin(_RESTARTED)

    def _restarted(self, seq: int, payload: bytes) -> None:
        """A lower number than expected, and not a batch of before."""
        self._restart()
        if self._next is None:
            self._adopt(seq)
        if seq == self._next:
            self._apply(seq, payload)
            self._finish()
        else:
            self._keep(seq, payload)

    def _adopt(self, seq: int) -> None:
        """The first batch where nothing can be asked: only the very first ones have no past worth mentioning."""
        self._next = seq
        if seq == 0:
            self._steps.append(Clear(anew=True))
        elif (seq > 1 or self.counts.restarts) and not self._heard:
            reason = f"joined at event batch {seq}, and without replay_endpoint what came before is not known"
            self._steps.append(Doubt(reason))
        self._heard = True

    def _wait_for_proof(self, seq: int, payload: bytes) -> None:
        """Until a replay shows who is there, nothing is applied. What comes while the connection is broken may be of
        the process before, and is not even held: the replay brings it if it counts."""
        if not self._connected:
            return
        if self._held and seq < self._highest_held:
            self._distrust_held()
        self._keep(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._steps.append(Apply(seq, payload))
        self._recent[seq] = hash(payload)
        self._recent.pop(seq - RECENT_BATCHES, None)
        self._next = seq + 1

    def _hold(self, seq: int, payload: bytes) -> None:
        if not self._keep(seq, payload) and not self._replay:
            self._overflow(seq, payload)
            return
        if not self.syncing:
            self.counts.gaps += 1
            self._sync(f"event batches from {self._next} to {seq - 1} are missing")
        if self._asked is None:
            self._fruitless = 0
            self._ask()

    def _keep(self, seq: int, payload: bytes) -> bool:
        if seq in self._held:
            self.counts.duplicates += 1
            return True
        if len(self._held) >= self._max_batches or self._held_bytes + len(payload) > self._max_bytes:
            self._let_go = True
            return False
        self._highest_held = max(seq, self._highest_held)
        self._held[seq] = payload
        self._held_bytes += len(payload)
        return True

    def _overflow(self, seq: int, payload: bytes) -> None:
        """Live batches come faster than what is missing before them, and it can't be asked for: on without it."""
        reason = f"{len(self._held)} event batches came while earlier ones were missing"
        self._forget_held()
        self._asked = None
        self._lose(reason, begin_at=seq)
        self._apply(seq, payload)
        self._finish()

    def _drain(self) -> None:
        """Apply what was held and is next; drop what came by another way meanwhile."""
        for seq in sorted(self._held):
            if self._next is None or seq > self._next:
                return
            payload = self._held.pop(seq)
            self._held_bytes -= len(payload)
            if seq == self._next:
                self._apply(seq, payload)

    def _void_replay(self) -> None:
        self._asked = None
        self._turn += 1

    def _distrust_held(self) -> None:
        """A lower number came than what is held, and nothing shows yet that both are of the same process."""
        self._forget_held()
        self._ask()

    def _forget_held(self) -> None:
        self._held.clear()
        self._held_bytes = self._highest_held = 0

    def _ask(self, from_start: bool = False) -> None:
        self._turn += 1
        self._asked = 0 if from_start else max(0, (self._next or 0) - 1)
        self._first_reply = True
        self._next_when_asked = self._next
        self.counts.replays += self._replay
        self._steps.append(Ask(self._asked, self._turn))

    def _ask_again(self) -> None:
        self._let_go = False
        self._fruitless = self._fruitless + 1 if self._next == self._next_when_asked else 0
        if self._fruitless >= FRUITLESS_REPLAYS:
            self._lose(f"the engine does not have event batch {self._next} any more")
        else:
            self._ask()

    def _lose(self, reason: str, begin_at: int | None = None) -> None:
        """Batches are gone for good: an empty view, then from `begin_at` on, or with what is held."""
        self.counts.losses += 1
        self._let_go = False
        self._sync(reason)
        self._steps += [Clear(), Doubt(reason)]
        self._unsure = False
        self._heard = True
        if begin_at is not None:
            self._next = begin_at
            return
        self._next = min(self._held, default=None)
        self._drain()
        while self._held:
            self._steps.append(Clear())
            self._next = min(self._held)
            self._drain()
        self._finish()

    def _answered(self) -> None:
        self._heard = True
        if self._unanswered:
            self._unanswered = False
            self._steps.append(Doubt("", unanswered=True))

    def _sync(self, reason: str) -> None:
        self.syncing = True
        self._steps.append(Syncing(reason))

    def _finish(self) -> None:
        """Nothing is missing any more, unless something is held, asked for or unheard of."""
        if self.syncing and (self._held or self._asked is not None or self._unsure or not self._connected):
            return
        if not self._heard:
            return
        self.syncing = False
