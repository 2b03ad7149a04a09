"""From one request that ended to its row of the decision log."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.telemetry.decision_log import DecisionLog
from pointsman.edge.telemetry.decision_row import MOST_CANDIDATES, DecisionRow, LoggedCandidate, pack_keys
from pointsman.edge.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Ended:
    """What the log needs of a request, none of which changes any more. Times on the front end's clock, in ms."""

    request: Request
    decision: Decision | None
    """The last one."""
    status: str
    http: int
    attempts: int
    arrived_epoch_ms: float
    dispatched_ms: float | None = None
    first_ms: float | None = None
    last_ms: float | None = None
    usage: Usage | None = None
    events: int = 0

    def row(self) -> DecisionRow:
        """The row. Costs up to a tenth of a millisecond for long prompts, so it is called beside the event loop."""
        request, usage, decision = self.request, self.usage, self.decision
        keys = _keys(request)
        row = DecisionRow(
            id=request.id,
            at_ms=round(self.arrived_epoch_ms, 3),
            model=request.model,
            status=self.status,
            http=self.http,
            prompt_tokens=request.prompt_tokens,
            prompt_from="tokenizer" if request.token_blocks else "estimate",
            output_tokens=self.events,
            prompt_bytes=request.blocks.length if request.blocks.unit is BlockUnit.BYTES else 0,
            tenant=request.tenant,
            session=None if request.route_key is None else _hashed(request.route_key),
            sequences=request.sequences,
            streamed=request.streamed,
            block_unit=str(keys.unit) if keys.keys else "",
            block_size=keys.block_size if keys.keys else 0,
            blocks=pack_keys(keys.keys),
            attempts=self.attempts,
            dispatched_ms=self._after(self.dispatched_ms),
            first_token_ms=self._after(self.first_ms),
            last_token_ms=self._after(self.last_ms),
        )
        if usage is not None:
            if usage.prompt_tokens is not None:
                row.prompt_tokens, row.prompt_from = usage.prompt_tokens, "engine"
            if usage.completion_tokens is not None:
                row.output_tokens = usage.completion_tokens
            row.cached_reported = usage.cached_tokens
        if decision is not None:
            _add_decision(row, decision)
        return row

    def _after(self, at_ms: float | None) -> float | None:
        return None if at_ms is None else round(at_ms - self.request.arrival_ms, 3)


class DecisionRecorder:
    """Hands requests that ended to the log."""

    def __init__(self, log: DecisionLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    def ended(self, exchange: Exchange) -> None:
        """A request ended; its exchange lets go of the relay."""
        relay, exchange.relay = exchange.relay, None
        request = exchange.request
        arrived_epoch_ms = time.time() * 1000 - (self._clock() - request.arrival_ms)
        answered = exchange.status == "finished"
        ended = Ended(
            request=request,
            decision=exchange.decision,
            status=exchange.status,
            http=exchange.http_status,
            attempts=exchange.attempts,
            arrived_epoch_ms=arrived_epoch_ms,
            dispatched_ms=exchange.dispatched_ms,
            first_ms=None if relay is None else relay.first_ms,
            last_ms=relay.last_ms if relay is not None and relay.last_ms else None,
            usage=relay.usage if relay is not None and answered else None,
            events=0 if relay is None else relay.events,
        )
        self._log.add(ended.row)


def _add_decision(row: DecisionRow, decision: Decision) -> None:
    candidates = decision.candidates()
    runner_up = decision.runner_up()
    chosen = decision.chosen_row
    row.policy, row.worker, row.unit, row.note = decision.policy, decision.worker, decision.unit, decision.note
    row.workers = len(candidates)
    row.candidates = [
        LoggedCandidate(one.worker, one.score, one.excluded, one.cached_tokens, one.load)
        for one in candidates[:MOST_CANDIDATES]
    ]
    if runner_up is not None:
        row.runner_up, row.margin = runner_up
    if chosen is not None:
        table = decision.view.table
        row.cached, row.exact = int(table[Column.CACHED_TOKENS, chosen]), bool(table[Column.EXACT, chosen])


def _keys(request: Request) -> BlockKeys:
    """Of tokens where the prompt was tokenized, the same way for all rows: the smallest blocks."""
    if not request.token_blocks:
        return request.blocks
    return request.token_blocks[min(request.token_blocks, key=lambda spec: (spec.block_size_tokens, spec.bigram))]


def _hashed(route_key: str) -> str:
    return hashlib.blake2b(route_key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
