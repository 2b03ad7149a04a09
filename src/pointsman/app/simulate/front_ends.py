"""FrontEnds: several front ends before one fleet, each with a ledger of its own, that tell each other what they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from pointsman.app.simulate.events import EventHeap, Rank
from pointsman.app.simulate.front_end import Carried, FrontEnd
from pointsman.core.ledger import events as ev
from pointsman.core.model.replica import ReplicaNews
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId

_ENDINGS = (ev.Finished, ev.Refused, ev.Failed, ev.Cancelled)


class Told(Protocol):
    """A ledger, or several."""

    def apply(self, event: ev.Event) -> None:
        """As Ledger's."""
        ...


class Decides(Protocol):
    """One front end, or several."""

    @property
    def ledger(self) -> Told:
        """What happens is told there."""
        ...

    def decide(self, request: Request, tried: Collection[WorkerId], now_ms: float) -> Carried | None:
        """As FrontEnd's."""
        ...


class FrontEnds:
    """Requests come to them in turn. What one does the others hear after `lag_ms`; None: they never hear of it.

    Half of the lag one waits to tell several things at once, half of it they are on their way, as live.
    """

    def __init__(self, front_ends: Sequence[FrontEnd], heap: EventHeap, lag_ms: float | None) -> None:
        self._front_ends = tuple(front_ends)
        self._heap = heap
        self._half_ms = 0.0 if lag_ms is None else lag_ms / 2
        self._turn = 0
        self._owner: dict[str, int] = {}
        if lag_ms is not None:
            for number, front_end in enumerate(self._front_ends):
                front_end.ledger.tell_others(self._waker(number))
                self._hear((number, front_end.ledger.whole_news(heap.now_ms)))

    @property
    def ledger(self) -> Told:
        """Of a request the ledger of its front end hears, of workers all."""
        return self

    def apply(self, event: ev.Event) -> None:
        """An event, to whom it concerns."""
        if isinstance(event, ev.Admitted):
            self._owner[event.request.id] = self._turn
            self._turn = (self._turn + 1) % len(self._front_ends)
            self._of(event.request.id).ledger.apply(event)
        elif isinstance(event, ev.RequestEvent):
            self._of(event.request_id).ledger.apply(event)
            if isinstance(event, _ENDINGS):
                del self._owner[event.request_id]
        else:
            for front_end in self._front_ends:
                front_end.ledger.apply(event)

    def decide(self, request: Request, tried: Collection[WorkerId], now_ms: float) -> Carried | None:
        """The decision of the front end that the request came to."""
        return self._of(request.id).decide(request, tried, now_ms)

    def _of(self, request_id: str) -> FrontEnd:
        return self._front_ends[self._owner[request_id]]

    # ---- what they tell each other

    def _waker(self, number: int) -> Callable[[], None]:
        return lambda: self._heap.push(self._heap.now_ms + self._half_ms, Rank.KV, self._tell, number)

    def _tell(self, number: int) -> None:
        now_ms = self._heap.now_ms
        news = self._front_ends[number].ledger.news(now_ms)
        self._heap.push(now_ms + self._half_ms, Rank.KV, self._hear, (number, news))

    def _hear(self, told: tuple[int, ReplicaNews]) -> None:
        teller, news = told
        self._front_ends[teller].ledger.heard_news()
        event = ev.ReplicaTold(f"front end {teller}", self._heap.now_ms, news)
        for number, front_end in enumerate(self._front_ends):
            if number != teller:
                front_end.ledger.apply(event)
