"""Fleet: the ledger's workers, with their numbers, health and what of prompts they probably hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.caches import Caches
from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.groups import ModelGroup, ModelGroups
from pointsman.core.ledger.guards import guard
from pointsman.core.ledger.health.comparison import others_sequences
from pointsman.core.ledger.health.keeper import HealthKeeper
from pointsman.core.ledger.health.settings import QUIET_SETTINGS, HealthSettings
from pointsman.core.ledger.health.verdicts import Judge
from pointsman.core.ledger.kv_classes import KvClasses, kv_sides, profiled_token_bytes, why_no_pair
from pointsman.core.ledger.kv_trust import KvChange
from pointsman.core.ledger.links import Links, machine_of
from pointsman.core.ledger.replicas import Replicas
from pointsman.core.ledger.request_exclusions import exclude_for_request
from pointsman.core.ledger.reuse import Reuse
from pointsman.core.ledger.snapshot import WorkerSnapshot
from pointsman.core.ledger.step_times import StepTimes
from pointsman.core.ledger.table import FleetTable
from pointsman.core.ledger.token_ratio import PRIOR_BYTES_PER_TOKEN
from pointsman.core.ledger.worker_snapshot import worker_snapshot
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.fault import Fault
from pointsman.core.model.guards import NO_GUARDS, Guards
from pointsman.core.model.outlook import NO_OUTLOOK, Outlook
from pointsman.core.model.replica import NO_SHARE, PromptTold, WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.transfer import USUAL_RULES, TransferRules
from pointsman.core.model.view import NOT_ZERO, STAGE_DECODE, STAGE_PREFILL, Column, Exclusion, FleetView
from pointsman.core.model.worker import Role, WorkerId, engine_of
from pointsman.core.timing.link_priors import USUAL_PRIORS, LinkPriors

METRICS_BELIEVED_MS = 30_000.0
"""An engine's load is unknown when its last reading is older than that: several readings in a row failed."""
_STAGES = {Role.PREFILL: STAGE_PREFILL, Role.DECODE: STAGE_DECODE, Role.BOTH: STAGE_PREFILL + STAGE_DECODE}
START_MS = 5_000.0
"""Workers that can be used so soon after the first one were there before the front end was."""


class Fleet:
    """Workers by id. Those that left with requests in flight keep their slot until the last one ended."""

    def __init__(
        self,
        text_block_bytes: int,
        prefix_ttl_ms: float,
        *,
        index_by_hash: bool = False,
        times: StepTimes | None = None,
        guards: Guards = NO_GUARDS,
        health: HealthSettings = QUIET_SETTINGS,
        transfer: TransferRules = USUAL_RULES,
        link_priors: LinkPriors = USUAL_PRIORS,
    ) -> None:
        self.table = FleetTable()
        self._transfer = transfer
        self._kv_off: set[WorkerId] = set()
        """Workers whose KV is left alone for a while."""
        self.kv_changes: deque[KvChange] = deque(maxlen=1000)
        self._kv_classes = KvClasses()
        self.links = Links(link_priors)
        self._guards = guards
        self._times = times
        self.caches = Caches(text_block_bytes, prefix_ttl_ms, index_by_hash=index_by_hash)
        self._entries: dict[WorkerId, WorkerEntry] = {}
        self.replicas = Replicas(self.table, self.caches, self._entries.get)
        self.health = HealthKeeper(
            health, self.table, self._entries, self._write_exclusion, Judge(health, self.table, times)
        )
        self._groups = ModelGroups()
        self._first_ready_ms: float | None = None

    # ---- membership

    def joined(self, event: ev.WorkerJoined) -> None:
        """A new worker, or a new incarnation of one."""
        before = self._entries.get(event.spec.id)
        if before is not None:
            self._leave(before)
        slot = self.table.take_slot()
        entry = WorkerEntry(
            event.spec, slot, self.health.joined(event.spec, before, event.at_ms), told_role=event.spec.role
        )
        if before is not None:
            entry.faults = before.faults
            _keep_role(before.spec.role, before.told_role, entry)
        self._entries[event.spec.id] = entry
        self._groups.forget()
        self._write_spec(entry)
        self._pairs_up(entry)
        self.health.moved(entry)
        self.caches.add_worker(slot, event.spec, PRIOR_BYTES_PER_TOKEN)
        self.replicas.joined(entry)
        if self._times is not None:
            self._times.joined(entry)

    def changed(self, event: ev.WorkerChanged) -> None:
        """What it tells of itself changed, it did not."""
        entry = self.entry(event.spec.id)
        role, told_role = entry.spec.role, entry.told_role
        self._unpairs(entry)
        entry.spec, entry.told_role = event.spec, event.spec.role
        _keep_role(role, told_role, entry)
        self._groups.forget()
        self._write_spec(entry)
        self._pairs_up(entry)
        self.health.moved(entry)
        if self._times is not None:
            self._times.changed(entry, event.at_ms)

    def draining(self, event: ev.WorkerDraining) -> None:
        """No new work for it."""
        entry = self.entry(event.worker)
        entry.draining = event.reason
        self.health.moved(entry)

    def resumed(self, event: ev.WorkerResumed) -> None:
        """New work for it again, unless its health speaks against it."""
        entry = self.entry(event.worker)
        entry.draining = None
        self.health.moved(entry)

    def role_changed(self, event: ev.RoleChanged) -> None:
        """It computes other stages from now on, until who tells of it says another role; what is there ends so."""
        entry = self.entry(event.worker)
        if entry.spec.role is event.role:
            return
        entry.spec = replace(entry.spec, role=event.role)
        self._groups.forget()
        self._write_spec(entry)
        self.health.moved(entry)
        if self._times is not None:
            self._times.changed(entry, event.at_ms)

    def at_engine(self, engine: str) -> dict[WorkerId, int]:
        """The workers of an engine, and how many requests are at each, or have KV there that another one fetches."""
        found = (entry for entry in self._entries.values() if engine_of(entry.id) == engine)
        return {entry.id: len(entry.flights.keys() | entry.gives) for entry in found}

    @property
    def transfer(self) -> TransferRules:
        """When KV is moved."""
        return self._transfer

    def queued(self, worker: WorkerId) -> int | None:
        """Requests that wait inside a worker's engine, by its metrics; None: they do not say, or it is not there."""
        entry = self._entries.get(worker)
        known = entry is not None and entry.metrics_ms is not None
        return int(self.table.cells[Column.QUEUED, entry.slot]) if entry is not None and known else None

    def rules_changed(self, event: ev.RulesChanged) -> None:
        """Other guards, and other limits of health."""
        self._guards = event.guards
        self._transfer = event.transfer
        self.health.change(event.health)

    def left(self, event: ev.WorkerLeft) -> None:
        """It is gone; its slot goes with its last request."""
        self._leave(self.entry(event.worker))
        self.health.left(event.worker)

    def _leave(self, entry: WorkerEntry) -> None:
        del self._entries[entry.id]
        self._groups.forget()
        self._unpairs(entry)
        self.caches.remove_worker(entry.slot)
        self.replicas.left(entry)
        entry.gone = True
        if self._times is not None:
            self._times.left(entry)
        self.released(entry)

    def released(self, entry: WorkerEntry) -> None:
        """A request of this entry ended, or the worker left: the slot is free when both are through."""
        if entry.gone and not entry.busy:
            self.table.give_back(entry.slot)

    def entry(self, worker: WorkerId) -> WorkerEntry:
        """The live incarnation of a worker. Raises LedgerError when there is none."""
        entry = self._entries.get(worker)
        if entry is None:
            raise LedgerError(f"worker {worker} is not in the fleet")
        return entry

    def own_shares(self, workers: Collection[WorkerId], at_ms: float) -> dict[WorkerId, WorkerShare]:
        """What our requests have at these workers; nothing at one that left."""
        found = ((worker, self._entries.get(worker)) for worker in workers)
        return {worker: self.replicas.own_share(entry, at_ms) if entry else NO_SHARE for worker, entry in found}

    def own_shares_everywhere(self, at_ms: float) -> dict[WorkerId, WorkerShare]:
        """What our requests have at the workers at which there are any."""
        return self.own_shares([entry.id for entry in self._entries.values() if entry.busy], at_ms)

    # ---- KV between workers

    def _pairs_up(self, entry: WorkerEntry) -> None:
        """It is among those that it can pass KV on to, at its machine."""
        cells, slot = self.table.cells, entry.slot
        entry.kv_class = self._kv_classes.joined(entry.spec)
        cells[Column.KV_GROUP, slot] = entry.kv_class
        self._write_kv_sides(entry)
        cells[Column.NODE, slot] = self.links.joined(entry.spec)
        self._write_token_bytes(entry)

    def _write_kv_sides(self, entry: WorkerEntry) -> None:
        self.table.cells[Column.KV_SIDES, entry.slot] = kv_sides(entry.spec) & ~entry.kv_trust.off

    def kv_failed(self, source: WorkerEntry, target: WorkerEntry, at_ms: float) -> None:
        """The KV of one was of no use to the other one. Who keeps failing is left alone for a while."""
        if not all(entry.spec.kv is not None and entry.spec.kv.alone for entry in (source, target)):
            return  # without transfers they would serve nobody
        for entry, gives in ((source, True), (target, False)):
            side = entry.kv_trust.gives if gives else entry.kv_trust.takes
            off_ms = side.failed(at_ms)
            if off_ms is not None and not entry.gone:
                self._kv_off.add(entry.id)
                self._write_kv_sides(entry)
                self.kv_changes.append(KvChange(entry.id, gives, off_ms, side.failures))

    def kv_worked(self, source: WorkerEntry, target: WorkerEntry) -> None:
        """The KV of one came to the other one and was used."""
        if source.kv_trust.gives.failures:
            source.kv_trust.gives.worked()
        if target.kv_trust.takes.failures:
            target.kv_trust.takes.worked()

    def _kv_again(self, at_ms: float) -> None:
        for worker in tuple(self._kv_off):
            entry = self._entries.get(worker)
            trust = None if entry is None else entry.kv_trust
            if entry is not None and trust is not None:
                for side, gives in ((trust.gives, True), (trust.takes, False)):
                    if side.back(at_ms):
                        self._write_kv_sides(entry)
                        self.kv_changes.append(KvChange(worker, gives, None))
            if trust is None or not trust.off:
                self._kv_off.discard(worker)

    def _unpairs(self, entry: WorkerEntry) -> None:
        self._kv_classes.left(entry.kv_class, entry.spec)
        self.links.left(entry.spec)

    def _write_token_bytes(self, entry: WorkerEntry) -> None:
        told = entry.spec.kv.bytes_per_token if entry.spec.kv is not None else None
        known = told or self._kv_classes.token_bytes(entry.kv_class) or profiled_token_bytes(entry.spec.profile)
        self.table.cells[Column.KV_TOKEN_BYTES, entry.slot] = known

    def transferred(
        self, source: WorkerEntry, target: WorkerEntry, event: ev.TransferEnded, token_bytes: int, others: int
    ) -> None:
        """What a transfer was like; `others`: how many shared the link. Teaches the link and the bytes of a token."""
        size_bytes = event.size_bytes
        if size_bytes is None and event.tokens is not None:
            size_bytes = event.tokens * token_bytes
        if size_bytes and event.took_ms is not None:
            self.links.observed(
                machine_of(source.spec), machine_of(target.spec), size_bytes, event.took_ms, max(0, others)
            )
        if (
            event.tokens
            and event.size_bytes
            and self._kv_classes.moved(source.kv_class, event.tokens, event.size_bytes)
        ):
            for entry in self._entries.values():
                if entry.kv_class == source.kv_class:
                    self._write_token_bytes(entry)

    def machines(self) -> dict[str, str]:
        """On which machine each worker is."""
        return {worker: machine_of(entry.spec) for worker, entry in self._entries.items()}

    def pairing(self, worker: WorkerId) -> list[tuple[WorkerId, str]]:
        """Workers of its models that it can't share requests with although their roles ask for it, and why."""
        spec = self.entry(worker).spec
        models = set(spec.models)
        others = (entry.spec for entry in self._entries.values() if entry.id != worker)
        found = ((other.id, why_no_pair(spec, other)) for other in others if models & set(other.models))
        return [(other, reason) for other, reason in found if reason is not None]

    def exclusions(self) -> dict[WorkerId, Exclusion]:
        """Why each worker gets no requests."""
        excluded = self.table.cells[Column.EXCLUSION]
        return {worker: Exclusion(int(excluded[entry.slot])) for worker, entry in self._entries.items()}

    def newest_text(self, most_keys: int) -> list[PromptTold]:
        """What was sent to each worker, as if it were one prompt each, for who knows nothing of it."""
        each = most_keys // max(1, len(self._entries))
        found = ((entry, self.caches.newest_text(entry.slot, each)) for entry in self._entries.values())
        return [PromptTold(entry.id, "", keys) for entry, keys in found if keys]

    def serves(self, model: str) -> bool:
        """True if any worker serves the model."""
        return len(self._group(model).workers) > 0

    def context_tokens(self, model: str) -> int | None:
        """The shortest known context among the model's workers."""
        known = self.table.cells[Column.CONTEXT_TOKENS, self._group(model).slots]
        known = known[known > 0]
        return int(known.min()) if len(known) else None

    def models(self) -> dict[str, tuple[WorkerId, ...]]:
        """Model names → workers, in the order in which the workers joined."""
        found: dict[str, list[WorkerId]] = {}
        for entry in self._entries.values():
            for model in entry.spec.models:
                found.setdefault(model, []).append(entry.id)
        return {model: tuple(workers) for model, workers in found.items()}

    # ---- KV events

    def kv_event(self, event: ev.KvEvent) -> None:
        """Something of the events that an engine sends about its KV cache."""
        slot = self.entry(event.worker).slot
        if isinstance(event, ev.BlocksStored):
            self.caches.stored(slot, event)
        elif isinstance(event, ev.BlocksRemoved):
            self.caches.removed(slot, event)
        elif isinstance(event, ev.BlocksCleared):
            self.caches.cleared(slot)
        elif isinstance(event, ev.KvChecked):
            self.caches.checked(slot, event.fault)
        else:
            self.caches.feed_changed(slot, event)
        self.table.cells[Column.EXACT, slot] = self.caches.is_exact(slot)
        self.table.cells[Column.HELD_TOKENS, slot] = self.caches.held_tokens(slot)

    def sent(
        self, entry: WorkerEntry, request: Request, cached_tokens: int, at_ms: float, *, exact: bool, computes: bool
    ) -> int:
        """A prompt went to a worker that holds `cached_tokens` of it, `exact`: by its own word; as Caches.sent."""
        text = self.caches.sent(entry.slot, request, cached_tokens, at_ms, exact=exact, computes=computes)
        self.table.cells[Column.HELD_TOKENS, entry.slot] = self.caches.held_tokens(entry.slot)
        return text

    def key_specs(self, model: str) -> frozenset[KeySpec]:
        """Ways in which prompts for a model have to be cut to be looked up exactly."""
        return self.caches.key_specs(self._group(model))

    def held_tokens(
        self, model: str, spec: KeySpec, keys: Sequence[int], *, believed: bool
    ) -> dict[WorkerId, dict[str, int]]:
        """Worker → medium → leading tokens that it says it holds up to that tier, for workers that cut blocks so.

        `believed`: only workers whose word is relied on.
        """
        group = self._group(model)
        held: dict[WorkerId, dict[str, int]] = {}
        for slot, tiers in self.caches.tiers(keys).items():
            row = group.row_of_slot.get(slot)
            wanted = row is not None and self.caches.view(slot).spec == spec
            if row is not None and wanted and (not believed or self.caches.is_exact(slot)):
                held[group.workers[row]] = {medium: n * spec.block_size_tokens for medium, n in tiers.items()}
        return held

    # ---- readings

    def health_read(self, event: ev.HealthRead) -> None:
        """A probe came back, or did not."""
        entry = self.entry(event.worker)
        health = entry.health
        was_lost = health.lost
        computes = not event.reachable and self.health.computes(entry, event.at_ms)
        health.probed(event.reachable, event.ready, event.reason, event.at_ms, refused=event.refused, computes=computes)
        if health.lost and not was_lost:
            self._process_lost(entry)
        elif health.usable_by_probes and not entry.was_ready:
            self._ready(entry, event.at_ms)
        self.health.moved(entry)

    def _ready(self, entry: WorkerEntry, at_ms: float) -> None:
        """Its process can be used for the first time."""
        entry.was_ready = True
        if self._first_ready_ms is None:
            self._first_ready_ms = at_ms
        if at_ms - self._first_ready_ms > START_MS:
            self.table.cells[Column.JOINED_MS, entry.slot] = round(at_ms)

    def _process_lost(self, entry: WorkerEntry) -> None:
        """Its cache is gone with it; when it can be used again it is as good as a new one."""
        entry.was_ready = False
        self.caches.emptied(entry.slot)
        entry.adapters.clear()
        self.table.cells[Column.JOINED_MS, entry.slot] = NOT_ZERO[Column.JOINED_MS]

    def canary_read(self, event: ev.CanaryRead) -> None:
        """How a canary went. Where nobody listens there is no doubt, as with a request."""
        self.health.canary_read(event)
        entry = self._entries.get(event.worker)
        if event.result is ev.CanaryResult.UNREACHABLE and entry is not None and not entry.health.lost:
            self.refused(entry, event.reason, event.at_ms)

    def gpu_read(self, event: ev.GpuRead) -> None:
        """How busy its GPUs are, or that nobody knows any more."""
        entry = self.entry(event.worker)
        self._set_gpu_use(entry, event.use, event.at_ms)
        entry.gpu_memory = event.memory

    def _set_gpu_use(self, entry: WorkerEntry, use: float | None, at_ms: float) -> None:
        unknown = NOT_ZERO[Column.GPU_USE_PERMILLE]
        self.table.cells[Column.GPU_USE_PERMILLE, entry.slot] = unknown if use is None else round(1000 * use)
        entry.gpu_ms = None if use is None else at_ms
        entry.gpu_memory = None if use is None else entry.gpu_memory

    def request_failed(
        self, entry: WorkerEntry, flight: Flight, event: ev.AttemptFailed | ev.Failed | ev.PrefillFailed
    ) -> None:
        """A request failed there, and the worker may be to blame."""
        if event.fault is None:
            return
        entry.faults.add(event.fault, event.reason, event.at_ms)
        if entry.gone:
            return
        if event.fault is Fault.UNREACHABLE:
            known = entry.health.lost
            self.refused(entry, event.reason, event.at_ms)
            if known:
                return
        self.health.failed(entry, flight, event.fault, event.reason, event.at_ms, event.retry_after_ms)

    def refused(self, entry: WorkerEntry, reason: str, at_ms: float) -> None:
        """Nobody listens there any more, so its cache is gone too."""
        if not entry.gone:
            entry.health.refused(reason, at_ms)
            self._process_lost(entry)
            self.health.moved(entry)

    def metrics_read(self, entry: WorkerEntry, event: ev.MetricsRead, bytes_per_token: float) -> None:
        """The engine's own counts. What exceeds ours is others' work.

        A reading is a little old: a request of ours that just ended may still be in it. So only what two readings in a
        row agree on counts as foreign.
        """
        cells, slot = self.table.cells, entry.slot
        foreign = max(0, event.running + event.waiting - int(cells[Column.RUNNING, slot]))
        before = foreign if entry.foreign_before is None else entry.foreign_before
        cells[Column.FOREIGN, slot] = min(foreign, before)
        entry.foreign_before = foreign
        cells[Column.QUEUED, slot] = max(0, event.waiting)
        entry.kv_use = event.kv_use
        entry.metrics_ms = entry.health.load_read_ms = event.at_ms
        if event.generated_tokens is not None:
            entry.health.generated(event.generated_tokens, event.at_ms)
        if event.resident_adapters is not None:
            entry.adapters.read(event.resident_adapters, event.most_adapters)
        capacity = event.kv_capacity_tokens
        if capacity and capacity != cells[Column.KV_CAPACITY_TOKENS, slot]:
            cells[Column.KV_CAPACITY_TOKENS, slot] = capacity
        held = int(cells[Column.KV_CAPACITY_TOKENS, slot])
        cells[Column.KV_USED_TOKENS, slot] = round((event.kv_use or 0.0) * held)
        self.caches.resize(slot, held or None, bytes_per_token)

    def ticked(self, at_ms: float) -> None:
        """Lets go of what is too old to be believed, and learns step times."""
        self.caches.expire(at_ms)
        self.links.ticked(at_ms)
        if self._kv_off:
            self._kv_again(at_ms)
        for entry in self._entries.values():
            self.table.cells[Column.HELD_TOKENS, entry.slot] = self.caches.held_tokens(entry.slot)
            if entry.metrics_ms is not None and at_ms - entry.metrics_ms > METRICS_BELIEVED_MS:
                entry.metrics_ms = entry.kv_use = entry.foreign_before = None
                self.table.cells[Column.FOREIGN, entry.slot] = 0
                self.table.cells[Column.QUEUED, entry.slot] = 0
                self.table.cells[Column.KV_USED_TOKENS, entry.slot] = 0
            if entry.gpu_ms is not None and at_ms - entry.gpu_ms > METRICS_BELIEVED_MS:
                self._set_gpu_use(entry, None, at_ms)
        if self._times is not None:
            self._times.ticked(self._entries.values(), partial(others_sequences, self.table), at_ms)
        self.health.ticked(at_ms)

    # ---- views

    def view(
        self,
        request: Request,
        tried: Collection[WorkerId],
        bytes_per_token: float,
        outlook: Outlook = NO_OUTLOOK,
    ) -> FleetView:
        """A copy of the rows that serve the request's model, with what each holds of this prompt."""
        group = self._group(request.model)
        # take, unlike an index, makes rows of one column each that lie in one piece.
        table = self.table.cells.take(group.slots, axis=1)
        self.caches.write(request, group, table, bytes_per_token)
        for row, entry in group.adapter_entries:
            table[Column.ADAPTER_MISSING, row] = request.model not in entry.adapters
        exclude_for_request(request, group, tried, table, self.replicas.expected_at)
        lifted = self._guards is not NO_GUARDS and guard(self._guards, request, group, table)
        return FleetView(group.workers, table, outlook, lifted, self._transfer)

    def reuse(self, model: str) -> Reuse | None:
        """Of what the workers of a model evict; None where there are none."""
        return self.caches.reuse(self._group(model))

    def snapshots(self) -> tuple[WorkerSnapshot, ...]:
        """All workers, in the order in which they joined."""
        return tuple(worker_snapshot(entry, self.table, self.caches, self._times) for entry in self._entries.values())

    def _group(self, model: str) -> ModelGroup:
        return self._groups.of(model, self._entries.values())

    def _write_spec(self, entry: WorkerEntry) -> None:
        cells, spec, slot = self.table.cells, entry.spec, entry.slot
        cells[Column.STAGES, slot] = _STAGES[spec.role]
        cells[Column.KV_CAPACITY_TOKENS, slot] = spec.kv_capacity_tokens or 0
        cells[Column.CONTEXT_TOKENS, slot] = spec.max_context_tokens or 0
        cells[Column.QUEUE_LIMIT, slot] = spec.queue_depth_threshold or 0
        cells[Column.WEIGHT_PERMILLE, slot] = max(1, round(1000 * spec.weight))
        cells[Column.CAP, slot] = spec.max_in_flight or 0
        cells[Column.MAX_SEQUENCES, slot] = spec.max_batch_size or 0
        cells[Column.TOPOLOGY_DISTANCE, slot] = spec.topology_distance

    def _write_exclusion(self, entry: WorkerEntry) -> None:
        status = entry.health.exclusion
        if status is Exclusion.NONE and entry.draining is not None:
            status = Exclusion.DRAINING
        if status is Exclusion.NONE and entry.spec.role is Role.PREFILL:
            status = Exclusion.ROLE
        self.table.cells[Column.EXCLUSION, entry.slot] = status


def _keep_role(role: Role, told_role: Role, entry: WorkerEntry) -> None:
    """A role by order holds on, as long as who tells of the worker says the same role as before."""
    if role is not told_role and told_role is entry.told_role:
        entry.spec = replace(entry.spec, role=role)
