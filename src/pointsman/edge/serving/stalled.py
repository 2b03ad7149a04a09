"""Stalled: answers that stand still at a worker that health gave up. They go on elsewhere at once.

A stopped process keeps its connections open, and one that drips bytes is never silent: nothing else would end them for
minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.fault import Fault
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerId
from pointsman.edge.serving.attempt import Attempt
from pointsman.edge.serving.breaks import NotMovedError
from pointsman.edge.serving.elsewhere import Elsewhere
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.legs.legs import Legs
from pointsman.edge.serving.legs.split import Split
from pointsman.edge.serving.legs.why import Why
from pointsman.edge.serving.retries import MOST_RESENDS

UNREACHABLE_AFTER_S = 1.0
"""Silence that is enough where probes say that nobody is there."""
NOT_SERVING_AFTER_S = 5.0
"""The same where only its tokens are said not to flow, or where it left."""


STUCK_AFTER_S = 60.0
"""Silence of an engine that is to go on with another one's KV, while both are well and it has no other queue."""


class Stalled:
    """Of one front end; `look` is called about every second."""

    def __init__(self, ledger: Ledger, elsewhere: Elsewhere, legs: Legs) -> None:
        self._ledger = ledger
        self._legs = legs
        self._elsewhere = elsewhere
        self._known: dict[Attempt, tuple[int, float]] = {}
        """Answers at workers that were given up → events so far, and since when there were no more."""
        self._loop = asyncio.get_running_loop()

    def look(self, running: Iterable[Exchange]) -> int:
        """Takes away what stands still and can go on elsewhere. Returns how many."""
        exclusions = self._ledger.exclusions()
        before, self._known = self._known, {}
        moved = 0
        all_running = list(running)
        for exchange in all_running:
            worker, relay = exchange.worker, exchange.relay
            if exchange.split is not None and not exchange.split.done:
                moved += self._other_stalled(exchange, exchange.split, exclusions, all_running)
            if worker is None or relay is None or relay.done.done():
                continue
            limit_s = _limit_s(exclusions.get(worker))
            if limit_s is None or relay.paused:
                continue
            stood_s = max(relay.idle_s, self._eventless_s(relay, before.get(relay)))
            if stood_s < limit_s:
                continue
            if not exchange.responder.started and exchange.tries.resends >= MOST_RESENDS:
                continue
            if self._elsewhere.can_move(exchange, worker):
                exclusion = exclusions.get(worker)
                why = "it left" if exclusion is None else exclusion.text
                reason = f"nothing whole came for {stood_s:.1f} s from {worker} ({why})"
                relay.interrupt(reason, Fault.LATE, goes_on=True)
                moved += 1
        return moved

    def _other_stalled(
        self,
        exchange: Exchange,
        split: Split,
        exclusions: Mapping[WorkerId, Exclusion],
        running: Sequence[Exchange],
    ) -> bool:
        """What is to come from a second engine that was given up is computed where the request is answered."""
        other = split.other.worker
        exclusion = exclusions.get(other)
        limit_s = _limit_s(exclusion)
        call = split.calling if exchange.waits_for_leg else None
        # a leg is answered at once when it is through: bytes that drip are no progress
        waited_s = None if exchange.relay is None else exchange.relay.idle_s
        waited_s = waited_s if call is None else call.waited_s
        if limit_s is None and call is None and waited_s is not None and waited_s >= STUCK_AFTER_S:
            return self._stuck(exchange, split, waited_s, running)
        if limit_s is None or waited_s is None or waited_s < limit_s:
            return False
        if call is None and self._may_be_under_way(exchange, split, running):
            return False
        why = "it left" if exclusion is None else exclusion.text
        reason = f"nothing whole came for {waited_s:.1f} s, and {other} is given up ({why})"
        return self._legs.give_up(exchange, split, NotMovedError(reason, Why.GIVEN_UP, Fault.LATE))

    def _stuck(self, exchange: Exchange, split: Split, waited_s: float, running: Sequence[Exchange]) -> bool:
        """Both engines are well, and nobody waits at the one that answers but for KV: it does not come."""
        answering = split.answering.worker
        unknown = not exchange.request.streamed and self._ledger.queued(answering) is None
        if unknown or self._may_be_under_way(exchange, split, running):
            return False
        view = self._ledger.view(exchange.request)
        if answering in view.workers:
            row = view.table[:, view.workers.index(answering)]
            if row[Column.QUEUED] > row[Column.TRANSFERS_IN]:
                return False
        reason = f"{answering} said nothing for {waited_s:.0f} s, and has no queue: the KV does not come"
        return self._legs.give_up(exchange, split, NotMovedError(reason, Why.STUCK, no_kv=True))

    def _may_be_under_way(self, exchange: Exchange, split: Split, running: Sequence[Exchange]) -> bool:
        """A plain answer shows nothing until it is whole. What its engine has queued are those that came last."""
        if exchange.request.streamed or split.calling is not None:  # of legs that go together the other one is not over
            return False
        queued = self._ledger.queued(split.answering.worker)
        if queued is None:
            return False
        since_ms = _sent_ms(split)
        behind = (one.split for one in running if one.split is not None and not one.split.done)
        answering = split.answering.worker
        return queued <= sum(one.answering.worker == answering and _sent_ms(one) > since_ms for one in behind)

    def _eventless_s(self, relay: Attempt, known: tuple[int, float] | None) -> float:
        """For how long it has been seen to get no event, whatever bytes came."""
        events, now_s = relay.events, self._loop.time()
        since_s = now_s if known is None or known[0] != events else known[1]
        self._known[relay] = (events, since_s)
        return now_s - since_s


def _sent_ms(split: Split) -> float:
    """When the engine that answers got its leg, nearly."""
    return split.began_ms if split.fetch_from_ms is None else split.fetch_from_ms


def _limit_s(exclusion: Exclusion | None) -> float | None:
    if exclusion is Exclusion.UNREACHABLE:
        return UNREACHABLE_AFTER_S
    return NOT_SERVING_AFTER_S if exclusion in (None, Exclusion.NOT_SERVING) else None
