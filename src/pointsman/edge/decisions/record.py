"""DecisionRecord: one request from its decision to its end. The request path writes references into it, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Disaggregate, answering
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes
from pointsman.edge.decisions.candidates import exclusions, logged_candidates
from pointsman.edge.decisions.legs import LegsTold
from pointsman.edge.decisions.plans import givers, logged_plans, moves_kv, pull_of
from pointsman.edge.decisions.predicted import predicted_alone_ms, predicted_times
from pointsman.edge.decisions.state import pack_state
from pointsman.edge.telemetry.decision_row import MOST_CANDIDATES, DecisionRow, LoggedLegs, hashed, pack_keys
from pointsman.edge.telemetry.token_times import mean_itl_ms
from pointsman.edge.wire.usage import Usage

RUNNING = "running"
STATUSES = (RUNNING, "finished", "refused", "failed", "cancelled")
_BYTES_EACH = 2_500
"""Objects of one record and its request, without what grows with workers or blocks."""
_BYTES_A_KEY = 40
_BYTES_A_WORKER_OF_TIMES = 81
_BYTES_OF_PLANS, _BYTES_A_WORKER_OF_PLANS = 4_000, 320
"""With what their terms are worked out of when somebody asks."""


@dataclass(slots=True, eq=False)
class DecisionRecord:
    """Times are on the front end's clock, in ms, but for `arrived_epoch_ms`. What it refers to is never changed."""

    request: Request
    arrived_epoch_ms: float
    """Since 1970."""
    seed: int
    """Of the front end's random numbers."""
    client_id: bytes | None = None
    """What the client calls it; told to nobody."""
    decision: Decision | None = None
    """The last one."""
    times: TimeRows | None = None
    """Step times that it was made with."""
    arm: str | None = None
    shadows: Mapping[str, str | None] = field(default_factory=dict)
    attempts: int = 0
    migrations: int = 0
    failed_at: Sequence[str] = ()
    dispatched_ms: float | None = None
    status: str = RUNNING
    http: int = 0
    first_ms: float | None = None
    last_ms: float | None = None
    gap_ms: float | None = None
    usage: Usage | None = None
    events: int = 0
    ttft_ms: float | None = None
    """From the decision on."""
    itl_ms: float | None = None
    predicted_ttft_ms: float | None = None
    predicted_tpot_ms: float | None = None
    size_bytes: int = 0
    """About what it holds, shared parts counted whole."""
    links: LinkTimes = NO_LINKS
    """That it was made with."""
    legs: LegsTold | None = None
    """What came of KV that was to be moved."""
    predicted_alone_ms: float | None = None
    """Time to the first token that was predicted of the best worker without it, where KV was to be moved."""
    rest: Request | None = None
    """What was left of it when it was decided, where its stream went on from what another worker had generated."""

    def conclude(self) -> None:
        """Once it has ended: what it is searched by, and its size. A few microseconds."""
        decision, times = self.decision, self.times
        if decision is not None and times is not None and not self.migrations:
            self.predicted_ttft_ms, self.predicted_tpot_ms = predicted_times(self.request, decision, times, self.links)
            if moves_kv(decision.plan):
                self.predicted_alone_ms = predicted_alone_ms(self.request, decision, times)
        if self.first_ms is not None and self.dispatched_ms is not None and not self.migrations:
            self.ttft_ms = self.first_ms - self.dispatched_ms
        tokens = None if self.usage is None else self.usage.completion_tokens
        self.itl_ms = mean_itl_ms(self.first_ms, self.last_ms, tokens, self.events, self.request.sequences)
        self.size_bytes = self._size_bytes()

    # ---- what it is searched by

    @property
    def arrived_ttft_ms(self) -> float | None:
        """From its arrival to its first token."""
        return None if self.first_ms is None else self.first_ms - self.request.arrival_ms

    @property
    def e2e_ms(self) -> float | None:
        """From its arrival to its end; None while it runs, or if nothing came."""
        return None if self.last_ms is None else self.last_ms - self.request.arrival_ms

    @property
    def error_ms(self) -> float | None:
        """By how much its time to the first token, from the decision on, was predicted wrongly."""
        if self.ttft_ms is None or self.predicted_ttft_ms is None:
            return None
        return abs(self.ttft_ms - self.predicted_ttft_ms)

    @property
    def saved_ms(self) -> float | None:
        """How much sooner its first token came than was predicted without moving KV: less than 0 if later.

        None where none was to be moved, or one of the two is not known.
        """
        if self.legs is None or self.predicted_alone_ms is None or self.ttft_ms is None:
            return None
        return self.predicted_alone_ms - self.ttft_ms

    def missed(self) -> list[str]:
        """Promised times that were not kept. What never got a first token was late, unless its client left."""
        slo = self.request.slo
        missed: list[str] = []
        if slo is None or self.status == RUNNING:
            return missed
        first = self.arrived_ttft_ms
        if slo.ttft_ms is not None and (self.status == "failed" if first is None else first > slo.ttft_ms):
            missed.append("ttft")
        if slo.tpot_ms is not None and self.itl_ms is not None and self.itl_ms > slo.tpot_ms:
            missed.append("tpot")
        return missed

    # ---- for people and files

    def row(
        self, most_candidates: int | None = MOST_CANDIDATES, *, state: bool = False, sample: float = 1.0
    ) -> DecisionRow:
        """The row. Costs up to some tenths of a millisecond, so it is made on demand or beside the event loop."""
        request, usage = self.request, self.usage
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
            client=None if self.client_id is None else hashed(self.client_id.decode("latin-1")),
            tenant=request.tenant,
            session=request.route_key,
            sequences=request.sequences,
            streamed=request.streamed,
            block_unit=str(keys.unit) if keys.keys else "",
            block_size=keys.block_size if keys.keys else 0,
            blocks=pack_keys(keys.keys),
            arm=self.arm,
            shadows=dict(self.shadows),
            legs=None if self.legs is None else _legs(self.legs),
            predicted_alone_ms=_rounded(self.predicted_alone_ms),
            predicted_ttft_ms=_rounded(self.predicted_ttft_ms),
            predicted_tpot_ms=_rounded(self.predicted_tpot_ms),
            ttft_ms=_rounded(self.ttft_ms),
            itl_ms=_rounded(self.itl_ms),
            gap_ms=_rounded(self.gap_ms),
            slo_missed=self.missed(),
            attempts=self.attempts,
            migrations=self.migrations,
            failed_at=list(self.failed_at),
            dispatched_ms=self._after(self.dispatched_ms),
            first_token_ms=self._after(self.first_ms),
            last_token_ms=self._after(self.last_ms),
            sample=sample,
        )
        if usage is not None:
            if usage.prompt_tokens is not None:
                row.prompt_tokens, row.prompt_from = usage.prompt_tokens, "engine"
                expected = (self.rest or request).prompt_tokens
                if usage.prompt_tokens != expected:
                    row.prompt_expected = expected
            if usage.completion_tokens is not None:
                row.output_tokens = usage.completion_tokens
            row.cached_reported = usage.cached_tokens
        legs = self.legs
        if legs is not None and legs.prefill is not None and legs.fallback is None:
            # Who answers counts what it was given as cached, too.
            row.cached_reported = legs.cached_tokens
        if self.decision is not None:
            _add_decision(row, self.decision, most_candidates)
            row.cached, row.exact = self._thought_cached(self.decision)
            if state:
                row.state = self.packed_state()
        return row

    def _thought_cached(self, decision: Decision) -> tuple[int, bool]:
        """At the worker that computes the prompt, with what it fetches; and whether that is by a worker's own word."""
        row = decision.chosen_row
        if row is None:
            return 0, False
        view, plan = decision.view, decision.plan
        computes = row
        if self.legs is None or self.legs.fallback is None:
            pull = pull_of(plan)
            if isinstance(plan, Disaggregate):
                computes = view.workers.index(plan.prefill)
            elif pull is not None:
                source = view.workers.index(pull.source)
                computes = max(row, source, key=lambda one: (int(view.table[Column.CACHED_TOKENS, one]), one == row))
        return int(view.table[Column.CACHED_TOKENS, computes]), bool(view.table[Column.EXACT, computes])

    def packed_state(self) -> str:
        """All that the policy was given; empty where nothing was decided."""
        if self.decision is None or self.times is None:
            return ""
        request = self.rest or self.request
        return pack_state(request, self.decision, self.times, self.decision.at_ms, self.seed, self.links)

    def _after(self, at_ms: float | None) -> float | None:
        return None if at_ms is None else round(at_ms - self.request.arrival_ms, 3)

    def _size_bytes(self) -> int:
        request, decision = self.request, self.decision
        keys = len(request.blocks.keys) + sum(len(blocks.keys) for blocks in request.token_blocks.values())
        size = _BYTES_EACH + _BYTES_A_KEY * keys
        if decision is not None:
            size += decision.view.table.nbytes + decision.scores.nbytes
            size += sum(values.nbytes for values in decision.terms.values())
            size += _BYTES_A_WORKER_OF_TIMES * len(decision.view)
            if decision.plans is not None:
                size += _BYTES_OF_PLANS + _BYTES_A_WORKER_OF_PLANS * len(decision.view)
        return size


def _add_decision(row: DecisionRow, decision: Decision, most_candidates: int | None) -> None:
    view = decision.view
    row.policy, row.worker, row.unit, row.note = decision.policy, decision.worker, decision.unit, decision.note
    row.workers = len(view)
    row.candidates = logged_candidates(decision, most_candidates)
    row.excluded = exclusions(decision)
    row.guards_lifted = view.guards_lifted
    runner_up = decision.runner_up_plan()
    if runner_up is not None:
        row.runner_up, row.margin = answering(runner_up[0]), round(runner_up[1], 6)
        row.runner_up_prefill, row.runner_up_source = givers(runner_up[0])
    row.prefill_worker, row.pull_source = givers(decision.plan)
    row.plans = logged_plans(decision)
    row.plans_comparable = decision.plans is None or decision.plans.comparable


def _legs(told: LegsTold) -> LoggedLegs:
    return LoggedLegs(
        prefill=told.prefill,
        source=told.source,
        prefill_ms=_rounded(told.prefill_ms),
        transfer_ms=_rounded(told.transfer_ms),
        moved_tokens=told.moved_tokens,
        moved_bytes=told.moved_bytes,
        transport=told.transport,
        lost_ms=_rounded(told.lost_ms),
        fallback=told.fallback,
    )


def _keys(request: Request) -> BlockKeys:
    """Of tokens where the prompt was tokenized, the same way for all rows: the smallest blocks."""
    if not request.token_blocks:
        return request.blocks
    return request.token_blocks[min(request.token_blocks, key=lambda spec: (spec.block_size_tokens, spec.bigram))]


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
