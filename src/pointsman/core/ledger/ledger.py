"""Ledger: a pure state machine, the only owner of state. Events in; views, counters and snapshots out.

At quiescence (no request in flight) every gauge is exactly zero. Whatever a request added to a worker is kept in its
flight together with the worker's entry, so that its release hits that entry, even when the worker left meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pointsman.core.ledger import events as ev
from pointsman.core.ledger import promises
from pointsman.core.ledger.adapters import AdapterLoads
from pointsman.core.ledger.arrivals import Arrivals
from pointsman.core.ledger.entries import Flight, Totals, WorkerEntry
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.health.canaries import CanaryDue
from pointsman.core.ledger.health.changes import HealthChange, HealthCounts
from pointsman.core.ledger.health.settings import QUIET_SETTINGS, HealthSettings
from pointsman.core.ledger.outbox import Outbox
from pointsman.core.ledger.output_lengths import ExpectedLength, OutputLengths
from pointsman.core.ledger.retry_budget import RetryBudget
from pointsman.core.ledger.snapshot import FleetSnapshot
from pointsman.core.ledger.step_times import StepTimes
from pointsman.core.ledger.token_ratio import TokenRatio
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.outlook import Outlook
from pointsman.core.model.replica import ReplicaNews, WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.stage import Stage
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.model.worker import Role, WorkerId
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.step import StepCoefficients

DEFAULT_PREFIX_TTL_MS = 3_600_000.0
_NO_TIMES = FleetTimes({})
_MOST_UNREPORTED_TOKENS = 64
"""Tokens that can be new at the end of an answer of which some were reported; more: it came in larger pieces."""


class Ledger:
    """All that is known of workers and requests.

    Args:
        text_block_bytes: size of the blocks that text keys are made of.
        index_by_hash: answer `held_by_hash`; costs memory for each block that an engine announces.
        prefix_ttl_ms: how long a prompt is thought to stay in a worker's cache when nothing else pushes it out.
        step_priors: step times by names of profiles, from which learning begins; None: step times are not learned.
        guards: limits beyond which workers are excluded.
        health: how much has to speak against a worker until it is left out.
        retry_share: retries that each request adds to the budget of them, 0 to 1.
    """

    def __init__(
        self,
        *,
        text_block_bytes: int = 128,
        prefix_ttl_ms: float = DEFAULT_PREFIX_TTL_MS,
        index_by_hash: bool = False,
        step_priors: Mapping[str, StepCoefficients] | None = None,
        guards: Guards = NO_GUARDS,
        retry_share: float = 0.2,
        health: HealthSettings = QUIET_SETTINGS,
    ) -> None:
        self._times = None if step_priors is None else StepTimes(step_priors)
        self._fleet = Fleet(
            text_block_bytes,
            prefix_ttl_ms,
            index_by_hash=index_by_hash,
            times=self._times,
            guards=guards,
            health=health,
        )
        self._outbox: Outbox | None = None
        self._lengths = OutputLengths()
        self._adapter_loads = AdapterLoads()
        self._flights: dict[str, Flight] = {}
        self._waiting = 0
        self._retries = RetryBudget(retry_share)
        self._sequence = 0
        self._totals = Totals()
        self._ratios: dict[str, TokenRatio] = {}
        self._arrivals: dict[str, Arrivals] = {}
        handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.WorkerJoined: self._worker_joined,
            ev.WorkerChanged: self._fleet.changed,
            ev.WorkerDraining: self._fleet.draining,
            ev.WorkerResumed: self._fleet.resumed,
            ev.WorkerLeft: self._worker_left,
            ev.HealthRead: self._fleet.health_read,
            ev.StreamsRead: self._fleet.health.streams_read,
            ev.CanarySent: self._fleet.health.canary_sent,
            ev.CanaryRead: self._fleet.canary_read,
            ev.MetricsRead: self._metrics_read,
            ev.GpuRead: self._fleet.gpu_read,
            ev.KvFeedChanged: self._fleet.kv_event,
            ev.KvChecked: self._fleet.kv_event,
            ev.BlocksStored: self._fleet.kv_event,
            ev.BlocksRemoved: self._fleet.kv_event,
            ev.BlocksCleared: self._fleet.kv_event,
            ev.Admitted: self._admitted,
            ev.Dispatched: self._dispatched,
            ev.FirstToken: self._first_token,
            ev.Progress: self._progress,
            ev.AttemptFailed: self._attempt_failed,
            ev.Finished: self._finished,
            ev.Refused: self._refused,
            ev.Failed: self._failed,
            ev.Cancelled: self._cancelled,
            ev.ReplicaTold: self._replica_told,
            ev.ReplicaGone: self._fleet.replicas.gone,
            ev.Tick: self._tick,
            ev.RulesChanged: self._rules_changed,
        }
        self._handlers = handlers

    def apply(self, event: ev.Event) -> None:
        """Take one event in. Raises LedgerError, with nothing changed, when it can't follow what is held."""
        self._handlers[type(event)](event)

    # ---- other front ends of the fleet

    def tell_others(self, wake: Callable[[], None]) -> None:
        """From now on keep what others have to be told; `wake` is called when there is something to fetch by `news`."""
        self._outbox = Outbox(wake)

    def news(self, at_ms: float) -> ReplicaNews:
        """What changed since this was last asked. Nothing unless `tell_others` was called."""
        if self._outbox is None:
            return ReplicaNews()
        workers, prompts, arrivals = self._outbox.take()
        self._fleet.replicas.told_others()
        return ReplicaNews(self._fleet.own_shares(workers, at_ms), prompts, arrivals)

    def heard_news(self) -> None:
        """What others did until a `news` was told is heard by now; call it once for each, in their order."""
        self._fleet.replicas.heard_others()

    def whole_news(self, at_ms: float) -> ReplicaNews:
        """What our requests have everywhere, for who knows nothing of it."""
        return ReplicaNews(self._fleet.own_shares_everywhere(at_ms), whole=True)

    def sent_before(self, most_keys: int) -> ReplicaNews:
        """Text blocks that were sent where nobody announces any, for a front end that is new; the newest ones."""
        return ReplicaNews(prompts=self._fleet.newest_text(most_keys))

    @property
    def prompts_not_told(self) -> int:
        """Prompts of which others were not told, since too much waited to be told."""
        return 0 if self._outbox is None else self._outbox.prompts_not_told

    # ---- what it answers

    def view(self, request: Request, tried: Collection[WorkerId] = (), *, stage: Stage = Stage.WHOLE) -> FleetView:
        """The workers that serve the request's model, as they stand now.

        Excluded are `tried` ones and those whose role does not fit the stage: workers for prefill take nothing else,
        and workers for decode take all but a prefill alone.
        """
        return self._fleet.view(request, tried, self.bytes_per_token(request.model), stage, self._outlook(request))

    def _outlook(self, request: Request) -> Outlook:
        expected = self._expected(request)
        reuse = self._fleet.reuse(request.model)
        return Outlook(
            output_tokens=expected.tokens(request.max_output_tokens),
            answers_seen=expected.answers_seen,
            reuse=0.0 if reuse is None else reuse.share,
            evictions_seen=0.0 if reuse is None else reuse.seen,
            found_tokens=0.0 if reuse is None else reuse.found_tokens,
            computed_tokens=0.0 if reuse is None else reuse.computed_tokens,
            arrivals_per_s=arrivals.per_s if (arrivals := self._arrivals.get(request.model)) else 0.0,
            adapter_load_ms=self._adapter_loads.load_ms,
        )

    def expected_output_tokens(self, request: Request) -> float:
        """What one answer to it is thought to come to; its own limit is heeded."""
        return self._expected(request).tokens(request.max_output_tokens)

    def _expected(self, request: Request) -> ExpectedLength:
        return self._lengths.expected(request.model, request.tenant, request.api)

    def bytes_per_token(self, model: str) -> float:
        """Bytes of prompt a token, learned for this model."""
        return self._ratio(model).bytes_per_token

    def tokens_of_bytes(self, model: str, prompt_bytes: int) -> int:
        """Estimated tokens of a prompt that was not tokenized."""
        return self._ratio(model).tokens(prompt_bytes)

    def key_specs(self, model: str) -> frozenset[KeySpec]:
        """Ways to cut prompts for a model so that they can be looked up exactly; empty: no worker sends KV events."""
        return self._fleet.key_specs(model)

    def held(
        self, model: str, spec: KeySpec, keys: Sequence[int], *, believed: bool = False
    ) -> dict[WorkerId, dict[str, int]]:
        """Worker → medium → leading tokens of a prompt that it says it holds in the tiers up to that one.

        `believed`: only workers whose word is relied on.
        """
        return self._fleet.held_tokens(model, spec, keys, believed=believed)

    def held_by_hash(self, model: str, spec: KeySpec, hashes: Sequence[int]) -> dict[WorkerId, dict[str, int]] | None:
        """The same for sequence hashes as other products compute them, believed only; None when it is switched off."""
        keys = self._fleet.caches.keys_of_hashes(spec, hashes)
        return None if keys is None else self._fleet.held_tokens(model, spec, keys, believed=True)

    def serves(self, model: str) -> bool:
        """True if any worker, usable or not, serves the model."""
        return self._fleet.serves(model)

    def context_tokens(self, model: str) -> int | None:
        """The shortest context among the model's workers: what fits there fits everywhere. None where nobody told."""
        return self._fleet.context_tokens(model)

    def models(self) -> dict[str, tuple[WorkerId, ...]]:
        """Model names → workers that serve them, over the whole fleet."""
        return self._fleet.models()

    def at_engine(self, engine: str) -> dict[WorkerId, int]:
        """The workers of an engine, and how many requests are at each."""
        return self._fleet.at_engine(engine)

    def exclusions(self) -> dict[WorkerId, Exclusion]:
        """Why each worker gets no requests; NONE: it does."""
        return self._fleet.exclusions()

    def may_retry(self, at_ms: float) -> bool:
        """Whether the budget has one more retry of a request that no token came of yet."""
        return self._retries.left(at_ms)

    def canaries_due(self, at_ms: float) -> tuple[CanaryDue, ...]:
        """Workers that should get a canary now, the most urgent first."""
        return self._fleet.health.canaries_due(at_ms)

    def take_health_changes(self) -> tuple[HealthChange, ...]:
        """What became of workers' health since the last time, for the log."""
        return self._fleet.health.take_changes()

    @property
    def health_counts(self) -> HealthCounts:
        """Changes of health and canaries so far."""
        return self._fleet.health.counts

    def holds(self, request_id: str) -> bool:
        """True while a request is admitted and not ended."""
        return request_id in self._flights

    @property
    def in_flight(self) -> int:
        """Requests admitted and not ended."""
        return len(self._flights)

    @property
    def waiting(self) -> int:
        """Requests admitted and not at a worker."""
        return self._waiting

    @property
    def timing(self) -> FleetTimes:
        """Learned step times of workers of which something is known. It is not changed later."""
        return _NO_TIMES if self._times is None else self._times.timing

    def know_profile(self, name: str, step: StepCoefficients) -> None:
        """Workers that join from now on may have this profile."""
        if self._times is not None:
            self._times.know_profile(name, step)

    def snapshot(self) -> FleetSnapshot:
        """Everything that people and metrics are shown."""
        return FleetSnapshot(
            workers=self._fleet.snapshots(),
            waiting=self._waiting,
            running=len(self._flights) - self._waiting,
            text_blocks=self._fleet.caches.text_blocks,
            exact_blocks=self._fleet.caches.exact_blocks,
            totals=replace(self._totals),
            bytes_per_token={model: ratio.bytes_per_token for model, ratio in self._ratios.items()},
            others=self._fleet.replicas.requests(),
        )

    # ---- workers

    def _worker_joined(self, event: ev.WorkerJoined) -> None:
        self._fleet.joined(event)
        self._told_anew(event.spec.id)

    def _worker_left(self, event: ev.WorkerLeft) -> None:
        self._fleet.left(event)
        self._told_anew(event.worker)

    def _told_anew(self, worker: WorkerId) -> None:
        """Requests of ours that were there count no more: others are not to wait for them to end."""
        if self._outbox is not None:
            self._outbox.changed(worker)

    # ---- requests

    def _admitted(self, event: ev.Admitted) -> None:
        if event.request.id in self._flights:
            raise LedgerError(f"request {event.request.id} was admitted already; ids must be unique")
        self._flights[event.request.id] = Flight(event.request, event.request)
        self._waiting += 1
        self._retries.came()
        self._came(event.request.model, event.at_ms)
        if self._outbox is not None:
            self._outbox.came(event.request.model)

    def _replica_told(self, event: ev.ReplicaTold) -> None:
        self._fleet.replicas.told(event)
        for model, count in event.news.arrivals.items():
            self._came(model, event.at_ms, count)

    def _came(self, model: str, at_ms: float, count: int = 1) -> None:
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            if not self._fleet.serves(model):
                return
            arrivals = self._arrivals[model] = Arrivals()
        arrivals.came(at_ms, count)

    def _dispatched(self, event: ev.Dispatched) -> None:
        flight = self._flight(event.request_id)
        if flight.entry is not None:
            raise LedgerError(f"request {event.request_id} is at {flight.entry.id} already")
        entry = self._fleet.entry(event.worker)
        self._waiting -= 1
        self._sequence += 1
        request = flight.request = event.rest or flight.admitted
        flight.entry = entry
        flight.dispatched_ms = event.at_ms
        flight.cached_tokens = min(event.cached_tokens, request.prompt_tokens)
        flight.exact = event.exact
        flight.prefill_tokens = request.prompt_tokens - flight.cached_tokens
        flight.kv_tokens = request.prompt_tokens
        flight.started = False
        flight.text_before = self._fleet.sent(entry, request, flight.cached_tokens, event.at_ms, exact=event.exact)
        entry.flights[request.id] = flight
        entry.totals.dispatched += 1
        self._totals.dispatched += 1
        cells = self._fleet.table.cells
        flight.sequences = request.sequences
        cells[Column.RUNNING, entry.slot] += flight.sequences
        cells[Column.PREFILL_TOKENS, entry.slot] += flight.prefill_tokens
        cells[Column.KV_TOKENS, entry.slot] += flight.kv_tokens
        decodes = entry.spec.role is not Role.PREFILL
        promises.dispatched(cells, entry.slot, flight, self._expected(request) if decodes else None)
        flight.adapter_missing = None
        if request.model in entry.spec.adapters:
            flight.adapter_missing = request.model not in entry.adapters
            entry.adapters.used(request.model)
        cells[Column.LAST_DISPATCH, entry.slot] = self._sequence
        if cells[Column.QUEUED, entry.slot]:
            cells[Column.QUEUED, entry.slot] += 1
        flight.ahead_tokens = int(cells[Column.PREFILL_TOKENS, entry.slot])
        if entry.health.standing.left_out:
            self._fleet.health.dispatched(entry, request.id)
        if entry.watch is not None:
            entry.watch.started(request, event.at_ms, flight.cached_tokens)
        if self._outbox is not None:
            self._tell_sent(self._outbox, flight, entry)

    def _first_token(self, event: ev.FirstToken) -> None:
        flight, entry = self._running(event.request_id)
        if flight.started:
            raise LedgerError(f"request {event.request_id} had its first token already")
        flight.started = True
        cells = self._fleet.table.cells
        cells[Column.PREFILL_TOKENS, entry.slot] -= flight.prefill_tokens
        promises.first_token(cells, entry.slot, flight)
        self._learn_adapter_load(flight, entry, event.at_ms)
        flight.prefill_tokens = 0
        self._changed(entry)
        if not entry.gone:
            self._fleet.health.first_token(entry, flight, event.at_ms)
        if entry.watch is not None and flight.request.streamed:
            # At once: another worker computed the prompt.
            entry.watch.first_token(event.request_id, event.at_ms, computed=event.at_ms > flight.dispatched_ms)

    def _progress(self, event: ev.Progress) -> None:
        flight, entry = self._running(event.request_id)
        if event.tokens < 0:
            raise LedgerError(f"request {event.request_id} can't progress by {event.tokens} tokens")
        if entry.watch is not None and flight.started and flight.request.streamed:
            # The first report of a request includes its first token.
            first = flight.kv_tokens == flight.request.prompt_tokens
            entry.watch.tokens(event.request_id, event.at_ms, max(0, event.tokens - first))
        flight.kv_tokens += event.tokens
        self._fleet.table.cells[Column.KV_TOKENS, entry.slot] += event.tokens
        promises.progress(self._fleet.table.cells, entry.slot, flight)
        self._changed(entry)
        if entry.health.token_seen(event.at_ms) and not entry.gone:
            self._fleet.health.moved(entry)

    def _attempt_failed(self, event: ev.AttemptFailed) -> None:
        flight, entry = self._running(event.request_id)
        self._fleet.request_failed(entry, flight, event)
        self._forget_unless_started(flight, entry)
        self._release(flight, entry)
        if entry.watch is not None:
            entry.watch.ended(event.request_id, event.at_ms)
        flight.entry = None
        self._waiting += 1
        entry.totals.attempts_failed += 1
        self._totals.attempts_failed += 1
        if not flight.started and event.fault is not None:
            self._retries.take(event.at_ms)

    def _finished(self, event: ev.Finished) -> None:
        flight, entry = self._running(event.request_id)
        if entry.watch is not None:
            entry.watch.ended(event.request_id, event.at_ms, _tokens_to_learn_from(flight, event.output_tokens))
        if not entry.gone:
            self._fleet.health.answered(entry, flight, event.at_ms)
        self._end(event.request_id, flight)
        self._learn_ratio(flight.admitted, event.prompt_tokens)
        self._learn_length(flight, entry, event)
        if event.cached_tokens is not None and event.prompt_tokens is not None:
            entry.drift.observe(event.prompt_tokens, flight.cached_tokens, event.cached_tokens, flight.exact)
        for totals in (entry.totals, self._totals):
            totals.finished += 1
            totals.output_tokens += event.output_tokens or 0
            totals.prompt_tokens += event.prompt_tokens or 0
            if event.cached_tokens is not None and event.prompt_tokens is not None:
                totals.reported_cached_tokens += event.cached_tokens
                totals.reported_prompt_tokens += event.prompt_tokens
                totals.predicted_cached_tokens += flight.cached_tokens

    def _refused(self, event: ev.Refused) -> None:
        for totals in self._broken_off(event.request_id, event.at_ms):
            totals.refused += 1

    def _failed(self, event: ev.Failed) -> None:
        flight = self._flight(event.request_id)
        if flight.entry is not None:
            self._fleet.request_failed(flight.entry, flight, event)
        for totals in self._broken_off(event.request_id, event.at_ms):
            totals.failed += 1

    def _cancelled(self, event: ev.Cancelled) -> None:
        for totals in self._broken_off(event.request_id, event.at_ms):
            totals.cancelled += 1

    def _broken_off(self, request_id: str, at_ms: float) -> list[Totals]:
        """End a request that was not answered; the totals that count how."""
        flight = self._flight(request_id)
        entry = flight.entry
        if entry is not None:
            self._forget_unless_started(flight, entry)
            if entry.watch is not None:
                entry.watch.ended(request_id, at_ms)
        self._end(request_id, flight)
        return [self._totals] if entry is None else [self._totals, entry.totals]

    def _end(self, request_id: str, flight: Flight) -> None:
        del self._flights[request_id]
        if flight.entry is None:
            self._waiting -= 1
        else:
            self._release(flight, flight.entry)

    def _release(self, flight: Flight, entry: WorkerEntry) -> None:
        cells = self._fleet.table.cells
        cells[Column.RUNNING, entry.slot] -= flight.sequences
        cells[Column.PREFILL_TOKENS, entry.slot] -= flight.prefill_tokens
        cells[Column.KV_TOKENS, entry.slot] -= flight.kv_tokens
        promises.released(cells, entry.slot, flight)
        if cells[Column.QUEUED, entry.slot]:
            cells[Column.QUEUED, entry.slot] -= 1
        flight.prefill_tokens = flight.kv_tokens = flight.sequences = 0
        del entry.flights[flight.request.id]
        if entry.health.trial_request is not None:
            self._fleet.health.released(entry, flight.request.id)
        self._changed(entry)
        self._fleet.released(entry)

    def _forget_unless_started(self, flight: Flight, entry: WorkerEntry) -> None:
        """A request that never got a first token left nothing that one could count on in the worker's cache."""
        if not flight.started:
            others = [other.request for other in entry.flights.values() if other is not flight]
            gone = self._fleet.caches.taken_back(entry.slot, flight.request, flight.text_before, others)
            if self._outbox is not None and not entry.gone:
                self._outbox.taken_back(entry.id, flight.request, *gone)

    def _changed(self, entry: WorkerEntry) -> None:
        """What our requests have at a worker."""
        if self._outbox is not None:
            self._outbox.changed(entry.id)

    def _tell_sent(self, outbox: Outbox, flight: Flight, entry: WorkerEntry) -> None:
        caches = self._fleet.caches
        keys, spec = caches.not_announced(entry.slot, flight.request, flight.cached_tokens, exact=flight.exact)
        outbox.sent(entry.id, flight.request, keys, spec, by_text=not caches.is_exact(entry.slot))
        outbox.changed(entry.id)
        self._fleet.replicas.expect(
            entry,
            WorkerShare(1, flight.sequences, flight.prefill_tokens, flight.kv_tokens, 1, flight.remaining_tokens),
        )

    # ---- the rest

    def _metrics_read(self, event: ev.MetricsRead) -> None:
        entry = self._fleet.entry(event.worker)
        self._fleet.metrics_read(entry, event, self._mean_bytes_per_token(entry))

    def _rules_changed(self, event: ev.RulesChanged) -> None:
        self._fleet.rules_changed(event)
        self._retries.share = event.retry_share

    def _tick(self, event: ev.Tick) -> None:
        self._fleet.ticked(event.at_ms)

    def _learn_ratio(self, request: Request, prompt_tokens: int | None) -> None:
        if prompt_tokens is not None and request.blocks.unit == "bytes":
            self._ratio(request.model).observe(request.blocks.length, prompt_tokens)

    def _learn_length(self, flight: Flight, entry: WorkerEntry, event: ev.Finished) -> None:
        """Of an answer to its end: of one that a limit cut off it is known only that it would have been longer."""
        request, output_tokens = flight.admitted, event.output_tokens
        if not output_tokens or flight.expected is None:
            return
        each = output_tokens / request.sequences
        limit, context = request.max_output_tokens, entry.spec.max_context_tokens
        cut_off = (limit is not None and each >= limit) or (
            context is not None and event.prompt_tokens is not None and event.prompt_tokens + each >= context
        )
        self._lengths.ended(request.model, request.tenant, request.api, each, cut_off=cut_off)

    def _learn_adapter_load(self, flight: Flight, entry: WorkerEntry, at_ms: float) -> None:
        if flight.adapter_missing is None or not flight.request.streamed:
            return
        late_ms = at_ms - flight.dispatched_ms
        times = self.timing.get(entry.id)
        if times is not None:
            late_ms -= times.overhead_ms + times.step.a_ms
            late_ms -= times.step.d_ms_per_prefill_token * flight.prefill_tokens
        self._adapter_loads.first_token(late_ms, missing=flight.adapter_missing)

    def _ratio(self, model: str) -> TokenRatio:
        ratio = self._ratios.get(model)
        if ratio is None:
            ratio = TokenRatio()
            if self._fleet.serves(model):
                self._ratios[model] = ratio
        return ratio

    def _mean_bytes_per_token(self, entry: WorkerEntry) -> float:
        ratios = [self.bytes_per_token(model) for model in entry.spec.models] or [TokenRatio().bytes_per_token]
        return sum(ratios) / len(ratios)

    def _flight(self, request_id: str) -> Flight:
        flight = self._flights.get(request_id)
        if flight is None:
            raise LedgerError(f"request {request_id} is not in flight: never admitted, or ended already")
        return flight

    def _running(self, request_id: str) -> tuple[Flight, WorkerEntry]:
        flight = self._flight(request_id)
        if flight.entry is None:
            raise LedgerError(f"request {request_id} is not at a worker")
        return flight, flight.entry


def _tokens_to_learn_from(flight: Flight, output_tokens: int | None) -> int | None:
    """Tokens of an answer, where those not reported yet are a token a step; else None."""
    reported = flight.kv_tokens - flight.request.prompt_tokens
    if output_tokens is not None:  # those that another worker generated before are in the prompt here
        output_tokens = max(0, output_tokens - (flight.request.prompt_tokens - flight.admitted.prompt_tokens))
    if output_tokens is None or (reported and output_tokens - reported > _MOST_UNREPORTED_TOKENS):
        return None
    return output_tokens
