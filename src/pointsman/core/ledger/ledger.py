"""Ledger: a pure state machine, the only owner of state. Events in; views, counters and snapshots out.

At quiescence (no request in flight) every gauge is exactly zero. Whatever a request added to a worker is kept in its
flight together with the worker's entry, so that its release hits that entry, even when the worker left meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.expectations import Expectations
from pointsman.core.ledger.fleet import Fleet
from pointsman.core.ledger.health.canaries import CanaryDue
from pointsman.core.ledger.health.changes import HealthChange, HealthCounts
from pointsman.core.ledger.health.settings import QUIET_SETTINGS, HealthSettings
from pointsman.core.ledger.kv_trust import KvChange
from pointsman.core.ledger.outbox import Outbox
from pointsman.core.ledger.requests import Requests
from pointsman.core.ledger.snapshot import FleetSnapshot
from pointsman.core.ledger.step_times import StepTimes
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.replica import ReplicaNews
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.transfer import USUAL_RULES, TransferRules
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_learning import LinkRow
from pointsman.core.timing.link_priors import USUAL_PRIORS, LinkPriors
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes
from pointsman.core.timing.step import StepCoefficients

DEFAULT_PREFIX_TTL_MS = 3_600_000.0
_NO_TIMES = FleetTimes({})


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
        transfer: when KV is moved between workers.
        link_priors: what is thought of links between machines before anything is seen.
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
        transfer: TransferRules = USUAL_RULES,
        link_priors: LinkPriors = USUAL_PRIORS,
    ) -> None:
        self._times = None if step_priors is None else StepTimes(step_priors)
        self._fleet = Fleet(
            text_block_bytes,
            prefix_ttl_ms,
            index_by_hash=index_by_hash,
            times=self._times,
            guards=guards,
            health=health,
            transfer=transfer,
            link_priors=link_priors,
        )
        self._timing = _NO_TIMES
        self._timed: tuple[FleetTimes, LinkTimes] = (_NO_TIMES, NO_LINKS)
        """What `_timing` was made of."""
        self._expectations = Expectations(self._fleet, self._times)
        requests = self._requests = Requests(self._fleet, self._expectations, retry_share)
        handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.WorkerJoined: self._worker_joined,
            ev.WorkerChanged: self._fleet.changed,
            ev.WorkerDraining: self._fleet.draining,
            ev.WorkerResumed: self._fleet.resumed,
            ev.WorkerLeft: self._worker_left,
            ev.RoleChanged: self._fleet.role_changed,
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
            ev.Admitted: requests.admitted,
            ev.Dispatched: requests.dispatched,
            ev.PrefillEnded: requests.prefill_ended,
            ev.PrefillFailed: requests.prefill_failed,
            ev.TransferEnded: requests.transfer_ended,
            ev.LinkMeasured: self._link_measured,
            ev.FirstToken: requests.first_token,
            ev.Progress: requests.progress,
            ev.AttemptFailed: requests.attempt_failed,
            ev.Finished: requests.finished,
            ev.Refused: requests.refused,
            ev.Failed: requests.failed,
            ev.Cancelled: requests.cancelled,
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
        self._requests.tell_others(Outbox(wake))

    def news(self, at_ms: float) -> ReplicaNews:
        """What changed since this was last asked. Nothing unless `tell_others` was called."""
        if self._requests.outbox is None:
            return ReplicaNews()
        workers, prompts, arrivals = self._requests.outbox.take()
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
        return 0 if self._requests.outbox is None else self._requests.outbox.prompts_not_told

    # ---- what it answers

    def view(self, request: Request, tried: Collection[WorkerId] = ()) -> FleetView:
        """The workers that serve the request's model, as they stand now.

        Excluded are `tried` ones and workers for prefill, which take no whole request; `FleetView.prefill_rows` are
        those that may compute the prompt for another one.
        """
        return self._fleet.view(
            request, tried, self.bytes_per_token(request.model), self._expectations.outlook(request)
        )

    def expected_output_tokens(self, request: Request) -> float:
        """What one answer to it is thought to come to; its own limit is heeded."""
        return self._expectations.expected(request).tokens(request.max_output_tokens)

    def bytes_per_token(self, model: str) -> float:
        """Bytes of prompt a token, learned for this model."""
        return self._expectations.ratio(model).bytes_per_token

    def tokens_of_bytes(self, model: str, prompt_bytes: int) -> int:
        """Estimated tokens of a prompt that was not tokenized."""
        return self._expectations.ratio(model).tokens(prompt_bytes)

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

    @property
    def transfer(self) -> TransferRules:
        """When KV is moved."""
        return self._fleet.transfer

    def queued(self, worker: WorkerId) -> int | None:
        """Requests that wait inside a worker's engine, by its metrics; None: they do not say, or it is not there."""
        return self._fleet.queued(worker)

    def exclusions(self) -> dict[WorkerId, Exclusion]:
        """Why each worker gets no requests; NONE: it does."""
        return self._fleet.exclusions()

    def may_retry(self, at_ms: float) -> bool:
        """Whether the budget has one more retry of a request that no token came of yet."""
        return self._requests.retries.left(at_ms)

    def canaries_due(self, at_ms: float) -> tuple[CanaryDue, ...]:
        """Workers that should get a canary now, the most urgent first."""
        return self._fleet.health.canaries_due(at_ms)

    def take_health_changes(self) -> tuple[HealthChange, ...]:
        """What became of workers' health since the last time, for the log."""
        return self._fleet.health.take_changes()

    def take_kv_changes(self) -> tuple[KvChange, ...]:
        """Whose KV is left alone, or tried again, since the last time; for the log."""
        changes = self._fleet.kv_changes
        if not changes:
            return ()
        found = tuple(changes)
        changes.clear()
        return found

    @property
    def health_counts(self) -> HealthCounts:
        """Changes of health and canaries so far."""
        return self._fleet.health.counts

    def holds(self, request_id: str) -> bool:
        """True while a request is admitted and not ended."""
        return request_id in self._requests.flights

    @property
    def in_flight(self) -> int:
        """Requests admitted and not ended."""
        return len(self._requests.flights)

    @property
    def waiting(self) -> int:
        """Requests admitted and not at a worker."""
        return self._requests.waiting

    @property
    def timing(self) -> FleetTimes:
        """Learned step times of workers of which something is known, and link times. It is not changed later."""
        times = _NO_TIMES if self._times is None else self._times.timing
        links = self._fleet.links.times
        if self._timed[0] is not times or self._timed[1] is not links:
            self._timing = times.linked(links)
            self._timed = (times, links)
        return self._timing

    def links_snapshot(self) -> tuple[LinkRow, ...]:
        """Links between machines of which something was seen, by names of machines."""
        return self._fleet.links.rows()

    def machines(self) -> dict[str, str]:
        """On which machine each worker is, by the names that links have."""
        return self._fleet.machines()

    def pairing(self, worker: WorkerId) -> list[tuple[WorkerId, str]]:
        """Workers that can't share requests with this one although their roles ask for it, and why.

        Raises LedgerError when the worker is not in the fleet.
        """
        return self._fleet.pairing(worker)

    def know_profile(self, name: str, step: StepCoefficients) -> None:
        """Workers that join from now on may have this profile."""
        if self._times is not None:
            self._times.know_profile(name, step)

    def snapshot(self) -> FleetSnapshot:
        """Everything that people and metrics are shown."""
        return FleetSnapshot(
            workers=self._fleet.snapshots(),
            waiting=self._requests.waiting,
            running=len(self._requests.flights) - self._requests.waiting,
            text_blocks=self._fleet.caches.text_blocks,
            exact_blocks=self._fleet.caches.exact_blocks,
            totals=replace(self._requests.totals),
            bytes_per_token=self._expectations.bytes_per_token(),
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
        if self._requests.outbox is not None:
            self._requests.outbox.changed(worker)

    def _replica_told(self, event: ev.ReplicaTold) -> None:
        self._fleet.replicas.told(event)
        for model, count in event.news.arrivals.items():
            self._expectations.came(model, event.at_ms, count)

    # ---- the rest

    def _metrics_read(self, event: ev.MetricsRead) -> None:
        entry = self._fleet.entry(event.worker)
        self._fleet.metrics_read(entry, event, self._expectations.mean_bytes_per_token(entry))

    def _rules_changed(self, event: ev.RulesChanged) -> None:
        self._fleet.rules_changed(event)
        self._requests.retries.share = event.retry_share

    def _link_measured(self, event: ev.LinkMeasured) -> None:
        self._fleet.links.observed(event.source, event.target, event.size_bytes, event.took_ms, event.under_way)

    def _tick(self, event: ev.Tick) -> None:
        self._fleet.ticked(event.at_ms)
