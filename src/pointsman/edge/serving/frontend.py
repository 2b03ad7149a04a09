"""Frontend: one front end, put together from its parts, started and stopped as a whole."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import Counter
from contextlib import suppress

from pointsman import __version__
from pointsman.core.ledger.events import Event, Tick, WorkerChanged, WorkerJoined, WorkerLeft
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import ConfigError, EngineError, PointsmanError
from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.kv_pairs import KvPairs
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.cluster.replicas.replica_bus import Transport
from pointsman.edge.cluster.replicas.replication import Replication
from pointsman.edge.cluster.status import EngineState
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.decisions.ring import DecisionRing
from pointsman.edge.decisions.routes import DecisionRoutes
from pointsman.edge.decisions.transfer_routes import TransferRoutes
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.serving.admin import AdminServer
from pointsman.edge.serving.admin_auth import AdminAuth
from pointsman.edge.serving.certificates import Certificates
from pointsman.edge.serving.clock import Clock, monotonic_ms
from pointsman.edge.serving.decision_metrics import DecisionCollector
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.dispatch import Dispatcher
from pointsman.edge.serving.drain_report import drain_reports
from pointsman.edge.serving.drains import Drains
from pointsman.edge.serving.engine_links import EngineLinks
from pointsman.edge.serving.exact_metrics import ExactRoutingCollector
from pointsman.edge.serving.exact_routing import ExactRouting
from pointsman.edge.serving.facts_listeners import FactsListeners
from pointsman.edge.serving.health_metrics import HealthCollector
from pointsman.edge.serving.health_watch import HealthWatch
from pointsman.edge.serving.indexer import Indexer
from pointsman.edge.serving.intake import Intake, IntakeSettings
from pointsman.edge.serving.kv_pairs_metrics import KvPairsCollector, refused_pairs
from pointsman.edge.serving.kv_status import links_status
from pointsman.edge.serving.legs.metrics import TransferCollector
from pointsman.edge.serving.link_feed import LinkFeed
from pointsman.edge.serving.link_metrics import LinkCollector
from pointsman.edge.serving.link_routes import LinkRoutes
from pointsman.edge.serving.live_streams import LiveStreams
from pointsman.edge.serving.metrics import FrontendCollector
from pointsman.edge.serving.overload_metrics import OverloadCollector
from pointsman.edge.serving.policies import ActivePolicy, load_registry
from pointsman.edge.serving.reload.parts import Configured, Graces, Parts
from pointsman.edge.serving.reload.reloader import Reloader, ReloadReport
from pointsman.edge.serving.reload.routes import ReloadRoutes
from pointsman.edge.serving.reload.source import ConfigSource
from pointsman.edge.serving.replica_metrics import ReplicaCollector
from pointsman.edge.serving.replica_report import replica_report
from pointsman.edge.serving.request_ids import RequestIds
from pointsman.edge.serving.rollout_metrics import RolloutCollector
from pointsman.edge.serving.rollout_routes import RolloutRoutes, rollout_document
from pointsman.edge.serving.routes import NO_ROUTE, Routes
from pointsman.edge.serving.settings import FrontendSettings, configured_orders, sampling_of
from pointsman.edge.serving.settling import settle
from pointsman.edge.serving.shutdown import Shutdown
from pointsman.edge.serving.status import Status, make_status
from pointsman.edge.serving.tasks import OwnedTasks
from pointsman.edge.serving.tenants.collector import TenancyCollector
from pointsman.edge.serving.tenants.tenancy import Tenancy
from pointsman.edge.serving.ticks import Ticks
from pointsman.edge.serving.workers.collector import DiscoveryCollector
from pointsman.edge.serving.workers.engines import Engines
from pointsman.edge.serving.workers.roles import Roles
from pointsman.edge.serving.workers.routes import WorkerRoutes
from pointsman.edge.telemetry.decision_log import DecisionLog
from pointsman.edge.telemetry.traffic import Traffic
from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.http1_client import UpstreamPool
from pointsman.edge.wire.http1_server import HttpServer
from pointsman.edge.wire.listening import listen_error

_log = logging.getLogger("pointsman.serving")


class Frontend:
    """One front end. Make it inside a running event loop. `clock` counts milliseconds as the loop does; `transport`
    carries messages of replicas instead of sockets. `config` is where the settings come from, to be read again.

    Raises PolicyError for an unknown policy and ConfigError for a decision log that can't be written; `start` raises
    EngineError when a port is taken.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        clock: Clock = monotonic_ms,
        transport: Transport | None = None,
        config: ConfigSource | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.reloads: Counter[str] = Counter()
        """Reloads of the configuration, by outcome."""
        self.traffic = Traffic()
        self.ledger = Ledger(
            text_block_bytes=settings.text_block_bytes,
            prefix_ttl_ms=settings.prefix_ttl_s * 1000,
            index_by_hash=settings.index_by_hash,
            step_priors=settings.step_priors,
            guards=settings.guards,
            retry_share=settings.failover.retry_share,
            health=settings.health,
            transfer=settings.transfer,
            link_priors=settings.link_priors,
        )
        self.kv_links = LinkFeed(self.emit, lambda: self.ledger.timing, self._clock, self.ledger.machines)
        self.replication = Replication(settings.replicas, self.ledger, self._clock, transport)
        self.bus = self.replication.bus
        self.admin_auth = AdminAuth(settings.admin_key)
        self.certificates = Certificates((settings.tls, settings.admin_tls), settings.trusts, *settings.etcd_trusts)
        self.tenancy = Tenancy(settings.tenancy, self.ledger, self.bus, self._clock)
        self._ids = RequestIds(settings.seed)
        self._seed = secrets.randbits(63) if settings.seed is None else settings.seed
        self.policy = ActivePolicy(
            load_registry(),
            settings.policy,
            has_route_key=settings.route_key is not None,
            rollout=settings.rollout,
            shadow=settings.shadow,
            watchers=settings.watchers,
        )
        self.links = EngineLinks()
        self.pool = UpstreamPool(connect_timeout_s=settings.timeouts.connect_s, trusts=settings.trusts)
        self._decision_log = _decision_log(settings)
        self.decisions = DecisionRing(settings.ring.most, settings.ring.most_bytes)
        recorder = DecisionRecorder(
            self.decisions,
            self._decision_log,
            sampling_of(settings.decision_log),
            self.traffic,
            self._clock,
            self._seed,
        )
        dispatcher = self.dispatcher = Dispatcher(
            self.ledger,
            self.policy,
            self.pool,
            self.links,
            self.traffic,
            settings.timeouts,
            self._clock,
            self._seed,
            recorder,
            settings.failover,
        )
        self._exact = ExactRouting(
            self.ledger,
            self.emit,
            self._clock,
            places=settings.tokenizer_places,
            tokenizers=settings.tokenizers,
            tokenize=settings.tokenize,
            trusts=settings.trusts,
        )
        intake = Intake(
            self.ledger,
            self._exact.keys,
            IntakeSettings.of(settings),
            self._clock,
            self._not_reached,
            self._ids,
        )
        self.drains = Drains(
            self.ledger,
            self.emit,
            dispatcher,
            self._engine_names,
            self._clock,
            grace_s=settings.drain_grace_s,
            cut_after_s=settings.drain_cut_after_s,
        )
        routes = Routes(self.ledger, intake, dispatcher, self.traffic, lambda: self.shutdown, self.tenancy.gate)
        self._server = HttpServer(routes.handle, settings.limits, self._not_http, self.tenancy.gate.refusal_of)
        self.shutdown = Shutdown(self._server, dispatcher.cut_all)
        self.kv_pairs = KvPairs()
        self._prober = Prober(
            self.emit,
            self._clock,
            random.Random(settings.seed),
            timing=ProbeTiming(interval_s=settings.heartbeat_s),
            trusts=settings.trusts,
            health_checks=settings.health_check,
            listener=FactsListeners(self._exact.listener, self.kv_pairs),
            collect_gpu_use=settings.collect_gpu_use,
        )
        self.engines = Engines(
            settings.discovery,
            self._prober,
            self.drains,
            self.bus,
            self.ledger,
            self._clock,
            random.Random(settings.seed),
            Roles(self.ledger, self.emit, self._facts, self._clock),
            settings.step_priors,
        )
        self.membership = self.engines.membership
        self._admin = AdminServer(
            self.policy,
            self.status,
            Indexer(self.ledger),
            (
                self._collector(),
                ExactRoutingCollector(self._exact),
                RolloutCollector(self.policy),
                DecisionCollector(self.decisions, self.traffic),
                OverloadCollector(self._server, self.drains, self.shutdown, lambda: self._ticks.late_s, self.reloads),
                ReplicaCollector(self.replication, self.ledger.snapshot),
                TenancyCollector(self.tenancy),
                TransferCollector(self.traffic),
                KvPairsCollector(self.kv_pairs),
                DiscoveryCollector(self.engines),
                self.certificates,
                self.admin_auth,
                LinkCollector(self.ledger.links_snapshot),
                HealthCollector(self.ledger.snapshot, lambda: self.ledger.health_counts),
            ),
            lambda: self.shutdown.accepting,
            [
                *RolloutRoutes(self.policy, has_route_key=settings.route_key is not None).routes(),
                *DecisionRoutes(self.decisions, self._ids.gave).routes(),
                *TransferRoutes(self.decisions, self.ledger.machines).routes(),
                *WorkerRoutes(self.engines.registrar, self.drains, self.engines.document).routes(),
                *LinkRoutes(self.ledger.links_snapshot, self.kv_links).routes(),
                *ReloadRoutes(lambda: self._reloader).routes(),
            ],
            self.admin_auth,
            settings.admin_tls,
        )

        self._health = HealthWatch(
            self.ledger,
            self.emit,
            LiveStreams(dispatcher.streams),
            self._prober.canary_target,
            self._clock,
            random.Random(settings.seed),
            settings.health.canary_ms / 1000,
        )
        self._ticks = Ticks(
            self._tick,
            self.drains.look,
            self.dispatcher.look,
            self.engines.look,
            self.tenancy.look,
            self._exact.look_after,
            self.policy.look,
        )
        self.graces = Graces.of(settings)
        self._reload_tasks = OwnedTasks()
        self._reloader: Reloader | None = None
        if config is not None:
            parts = Parts(
                emit=self.emit,
                clock=self._clock,
                policy=self.policy,
                configured=Configured(configured_orders(config.tree)),
                intake=intake,
                dispatcher=dispatcher,
                pool=self.pool,
                server=self._server,
                drains=self.drains,
                graces=self.graces,
                recorder=recorder,
                membership=self.membership,
                prober=self._prober,
                links=self.kv_links,
                retime_canaries=self._health.retime,
            )
            self._reloader = Reloader(config, parts.all(), self._new_tenancy, self.reloads)

    # ---- life

    async def start(self) -> None:
        """Listen and begin to look for the engines; does not wait for them, unless `settle_s` says so."""
        settle_s = self._settings.settle_s
        try:
            await self.replication.start()
            if settle_s is None:
                await self._listen()
        except EngineError:
            await self.replication.close()
            self._close_log()
            raise
        self.tenancy.start(self._settings.host)
        self.certificates.start()
        self.kv_links.tell_file(self._settings.measured_links)
        await self._prober.start()
        await self.engines.start(self._settings.sources)
        self._ticks.start()
        if settle_s is not None:
            await settle(settle_s, self.replication, self.engines, self._prober, self.ledger)
            try:
                await self._listen()
            except EngineError:
                await self._close()
                raise
        _log.info("listening on %s, admin on %s, policy %s", self.url, self.admin_url, self.policy.configured_name)

    async def _listen(self) -> None:
        settings = self._settings
        try:
            await self._server.start(
                settings.host,
                settings.port,
                ssl=None if settings.tls is None else settings.tls.context,
                reuse_port=settings.reuse_port,
                socks=settings.client_sockets,
            )
        except OSError as error:
            raise listen_error(settings.host, settings.port, "--port", error) from error
        try:
            await self._admin.start(settings.admin_host, settings.admin_port, settings.admin_sockets)
        except EngineError:
            await self._server.close()
            raise

    async def retire(self, grace_s: float) -> None:
        """Another front end has taken over the ports: accept no more, end what runs within `grace_s`, then close."""
        await self._admin.stop_listening()
        await self.shutdown.retire(grace_s)
        await self._close()

    async def close(self, grace_s: float = 0.0, lag_s: float = 0.0) -> None:
        """Unready at once; what comes within `lag_s` is still answered, then nothing new is.

        What is in flight gets `grace_s` in all to end, then it is cut. Until then it goes on listening.
        """
        await self.shutdown.stop(grace_s, lag_s)
        await self._close()

    async def reload(self, why: str) -> ReloadReport:
        """Read the configuration again and put in force what may change while requests run.

        Raises PointsmanError that names the line and the key, and nothing has changed.
        """
        if self._reloader is None:
            raise ConfigError("this front end was made without a configuration that could be read again")
        return await self._reloader.reload(why)

    def reload_by_signal(self) -> None:
        """The same without waiting; what is wrong is in the log."""

        async def reload() -> None:
            with suppress(PointsmanError):
                await self.reload("SIGHUP")

        self._reload_tasks.start(reload(), "reload")

    async def _new_tenancy(self, settings: FrontendSettings) -> None:
        await self.tenancy.reload(settings.tenancy)
        self.admin_auth.change(settings.admin_key)
        await self.certificates.look()

    def hurry(self) -> None:
        """Let whoever waits for requests in `close` or `retire` wait no longer."""
        self.shutdown.hurry()

    async def _close(self) -> None:
        await self._reload_tasks.close()
        await self._server.close()
        await self.replication.close()
        await self.tenancy.close()
        await self.certificates.close()
        await self._health.close()
        await self.kv_links.close()
        await self.dispatcher.legs.close()
        await self.engines.close()
        await self._prober.close()
        await self._exact.close()
        await self._ticks.close()
        await self._admin.close()
        await self.pool.close()
        await asyncio.to_thread(self._close_log)

    def _close_log(self) -> None:
        if self._decision_log is not None:
            self._decision_log.close()

    @property
    def url(self) -> str:
        """Base URL for clients."""
        scheme = "https" if self._settings.tls is not None else "http"
        return f"{scheme}://{_url_host(self._settings.host)}:{self._server.port}"

    @property
    def admin_url(self) -> str:
        """Base URL of the admin port."""
        scheme = "https" if self._settings.admin_tls is not None else "http"
        return f"{scheme}://{_url_host(self._settings.admin_host)}:{self._admin.port}"

    # ---- parts

    def emit(self, event: Event) -> None:
        """An event of the cluster on its way to the ledger."""
        if isinstance(event, WorkerJoined | WorkerChanged):
            self.links.joined(event.spec, self.engines.joining(event.spec))
            link = self.links.of(event.spec.id)
            self.pool.hide(link.origin, link.api_key)
        self.ledger.apply(event)
        if isinstance(event, WorkerJoined | WorkerChanged):
            self.engines.described(event.spec)
        if isinstance(event, WorkerJoined):
            self.drains.joined(event.spec)
        elif isinstance(event, WorkerLeft):
            self.links.left(event.worker)

    def status(self) -> Status:
        """The status document."""
        models: dict[str, list[str]] = {model: list(workers) for model, workers in self.ledger.models().items()}
        fleet = self.ledger.snapshot()
        status = make_status(
            fleet,
            models,
            self._prober.statuses(),
            self.traffic,
            self.policy.configured_name,
            self.policy.in_force(),
            self._clock(),
        )
        status.phase, status.drains = self.shutdown.phase, drain_reports(self.drains, self._clock())
        trials = rollout_document(self.policy)
        status.rollout, status.shadows = trials.rollout, trials.shadows
        status.replicas = replica_report(self.replication, fleet)
        status.tenants = self.tenancy.report()
        status.certificate_faults = list(self.certificates.faults)
        status.discovery = self.engines.report()
        status.kv_pairs_refused = refused_pairs(self.kv_pairs)
        status.kv_links = links_status(self.ledger.links_snapshot(), self.ledger.machines())
        for worker in status.workers:
            if worker.role_ordered and worker.passing is not None:
                worker.passing.refused = dict(self.ledger.pairing(WorkerId(worker.id)))
        return status

    def _engine_names(self) -> list[str]:
        return [engine.name for engine in self._prober.statuses()]

    def _facts(self, engine: str) -> EngineFacts | None:
        return next((one.facts for one in self._prober.statuses() if one.name == engine), None)

    def _not_http(self, status: int, message: str) -> bytes:
        """Body of an answer to what is no proper request."""
        self.traffic.responses[NO_ROUTE, status] += 1
        return error_body(status, message)

    def _not_reached(self) -> list[str]:
        """Engines of which nobody knows yet what they serve, and places that may name others."""
        engines = self._prober.statuses()
        unknown = [f"{e.name} ({e.reason})" for e in engines if e.state is EngineState.LOOKING]
        unknown += self.engines.unread()
        return unknown if unknown or engines else ["nobody named an engine so far"]

    def _collector(self) -> FrontendCollector:
        return FrontendCollector(
            self.ledger.snapshot,
            self.traffic,
            lambda: {"clients": self._server.connections, "engines": self.pool.open_connections},
            lambda: self.policy.configured_name,
            self._decision_log,
            queue_depth=self._settings.collect_queue_depth,
            cache_tokens=self._settings.collect_cache_tokens,
        )

    def _tick(self) -> None:
        self._health.before_tick()
        self.ledger.apply(Tick(self._clock()))
        self._health.after_tick()


def _decision_log(settings: FrontendSettings) -> DecisionLog | None:
    wanted = settings.decision_log
    return None if wanted is None else DecisionLog(wanted.path, wanted.max_bytes, wanted.keep, product=__version__)


def _url_host(host: str) -> str:
    if host in ("0.0.0.0", "::"):  # shown as an address that can be called from here
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
