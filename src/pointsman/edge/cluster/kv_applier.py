"""KvApplier: does the steps of a sequence, in their order: batches are read, translated and told to the ledger."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pointsman.core.ledger.events import BlocksCleared, KvEvent
from pointsman.edge.cluster.kv_sequence import Apply, Ask, Clear, Doubt, KvSequence, Step, Syncing
from pointsman.edge.cluster.kv_source import KvSource
from pointsman.edge.cluster.kv_standing import KvStanding
from pointsman.edge.cluster.kv_translate import Fault, KvTranslator, Translated
from pointsman.edge.wire.kv_events import KvEventError, UnreadBatch, open_batch

_log = logging.getLogger("pointsman.cluster")

MAX_FAULTS_TOLD = 100
"""So many different faults are written to the log, each once."""

Clock = Callable[[], float]


@dataclass(slots=True)
class _InWork:
    """A batch of which some events were told."""

    step: Apply
    batch: UnreadBatch
    rest: Iterator[Translated | None]


class KvApplier:
    """Steps are queued and done bit by bit, a batch event by event, so that nothing holds up the event loop.

    The view's worth is told only when nothing is queued: never before the batches that it speaks of.
    """

    def __init__(
        self,
        source: KvSource,
        sequence: KvSequence,
        emit: Callable[[KvEvent], None],
        ask: Callable[[Ask], None],
        now_ms: Clock,
        wall_s: Clock,
    ) -> None:
        self.standing = KvStanding(source.worker, emit, now_ms, source.hint)
        self.standing.syncing(f"connecting to {source.endpoint}")
        self.last_seq: int | None = None
        self.batches = self.events = self.bytes = self.unusable = 0
        self.lag_s: float | None = None
        self.behind = ""
        """Why so much waits elsewhere that the view is not to be used; empty: it does not."""
        self._source = source
        self._sequence = sequence
        self._emit = emit
        self._ask = ask
        self._now_ms = now_ms
        self._wall_s = wall_s
        self._translator = KvTranslator(source.worker)
        self._todo: deque[Step] = deque()
        self._in_work: _InWork | None = None
        self._faults_told: set[str] = set()

    @property
    def busy(self) -> bool:
        """True while something is to be done."""
        return self._in_work is not None or bool(self._todo)

    def add(self, steps: Iterable[Step]) -> None:
        """Queue steps. What was to be applied before a Clear is not applied any more: it would be for nothing."""
        for step in steps:
            if isinstance(step, Clear):
                self._in_work = None
                self._todo = deque(queued for queued in self._todo if not isinstance(queued, Apply))
            self._todo.append(step)

    def work(self, end_s: float = float("inf")) -> bool:
        """Do what is queued until `end_s` of time.perf_counter(), some of it at least; False: there is more."""
        while self.busy:
            if self._in_work is not None:
                self._go_on(self._in_work)
            else:
                self._do(self._todo.popleft())
            if time.perf_counter() > end_s and self.busy:
                return False
        if not self._sequence.syncing:
            self._settle()
        return True

    def _settle(self) -> None:
        if self.behind:
            self.standing.syncing(self.behind)
        else:
            self.standing.settle()

    def fault(self, reason: str) -> None:
        """Something that came is of no use."""
        self.unusable += 1
        if reason not in self._faults_told and len(self._faults_told) < MAX_FAULTS_TOLD:
            self._faults_told.add(reason)
            _log.warning("KV events of %s: %s", self._source.worker, reason)

    # ---- steps

    def _do(self, step: Step) -> None:
        if isinstance(step, Apply):
            self._apply(step)
        elif isinstance(step, Syncing):
            self.standing.syncing(step.reason)
        elif isinstance(step, Clear):
            self._clear(step.anew)
        elif isinstance(step, Ask):
            self._ask(step)
        else:
            self._doubt(step)

    def _apply(self, step: Apply) -> None:
        try:
            batch = open_batch(step.payload)
        except KvEventError as error:
            self._unreadable(step, error)
            return
        if self._source.rank is not None and batch.dp_rank not in (None, self._source.rank):
            self._applied(step)
            self._spoiled(f"events of data-parallel rank {batch.dp_rank} come from {self._source.endpoint}")
            return
        self._in_work = _InWork(step, batch, self._translator.steps(batch, self._now_ms()))

    def _go_on(self, work: _InWork) -> None:
        """Tell one more event of the batch."""
        try:
            event = next(work.rest)
        except StopIteration:
            self._in_work = None
            self._applied(work.step)
            self.events += work.batch.count
            self.lag_s = self._wall_s() - work.batch.ts
            return
        except KvEventError as error:
            self._in_work = None
            self._unreadable(work.step, error)
            return
        if event is not None:
            self._tell(event)

    def _tell(self, event: Translated) -> None:
        if isinstance(event, Fault):
            self.fault(event.reason)
            self.standing.doubt_content(event.reason)
            return
        self._emit(event)
        if isinstance(event, BlocksCleared):
            self.standing.cleared_by_engine()

    def _applied(self, step: Apply) -> None:
        self.last_seq = step.seq
        self.batches += 1
        self.bytes += len(step.payload)

    def _unreadable(self, step: Apply, error: KvEventError) -> None:
        self._applied(step)
        self._spoiled(f"an event batch can't be read: {error}")

    def _spoiled(self, reason: str) -> None:
        """A batch that may have told of removals is lost: nothing known can be relied on."""
        self.fault(reason)
        self.standing.syncing(reason)
        self._clear(anew=False)
        self.standing.doubt_content(reason)

    def _clear(self, anew: bool) -> None:
        self._emit(BlocksCleared(self._source.worker, self._now_ms()))
        if anew:
            self.last_seq = None  # it was the number of a process that is no more
            self.standing.anew()
            self._translator.reset()

    def _doubt(self, step: Doubt) -> None:
        if step.unanswered:
            self.standing.doubt_unanswered(step.reason)
        else:
            self.standing.doubt_history(step.reason)
