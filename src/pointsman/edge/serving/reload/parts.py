"""What a reload puts in force, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pointsman.core.ledger.events import Event, RulesChanged
from pointsman.edge.cluster.membership import CONFIGURATION, Membership
from pointsman.edge.cluster.prober import Prober
from pointsman.edge.cluster.timing import ProbeTiming
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.decision_record import DecisionRecorder
from pointsman.edge.serving.dispatch import Dispatcher
from pointsman.edge.serving.drains import Drains
from pointsman.edge.serving.intake import Intake, IntakeSettings
from pointsman.edge.serving.link_feed import LinkFeed
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.reload import keys
from pointsman.edge.serving.reload.reloader import Apply, Part
from pointsman.edge.serving.rollout_order import Orders
from pointsman.edge.serving.settings import FrontendSettings, sampling_of
from pointsman.edge.wire.http1_client import UpstreamPool
from pointsman.edge.wire.http1_server import HttpServer


@dataclass(slots=True)
class Graces:
    """What requests get when the front end stops, in seconds."""

    shutdown_s: float
    ready_lag_s: float

    @classmethod
    def of(cls, settings: FrontendSettings) -> Graces:
        """As configured."""
        return cls(settings.shutdown_grace_s, settings.ready_lag_s)


@dataclass(slots=True)
class Configured:
    """Who shall decide by the configuration as it was read last. Who does may have been changed by hand since."""

    orders: Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of a front end takes other settings while it runs."""

    emit: Callable[[Event], None]
    clock: Clock
    policy: ActivePolicy
    configured: Configured
    intake: Intake
    dispatcher: Dispatcher
    pool: UpstreamPool
    server: HttpServer
    drains: Drains
    graces: Graces
    recorder: DecisionRecorder
    membership: Membership
    prober: Prober
    links: LinkFeed
    retime_canaries: Callable[[float], None]
    """Gets what one may take, in seconds."""

    def all(self) -> list[Part]:
        """For the reloader."""
        return [
            Part(keys.POLICY, self._policy),
            Part(keys.SHADOW, self._shadows),
            Part((*keys.GUARDS, *keys.HEALTH, *keys.FAILOVER, *keys.TRANSFER), self._rules),
            Part(keys.INTAKE, self._intake),
            Part(keys.TIMES, self._times),
            Part(keys.LIMITS, self._limits),
            Part(keys.GRACES, self._graces),
            Part(keys.SAMPLING, self._sampling),
            Part((keys.NODES,), self._nodes),
            Part(keys.HEALTH, self._heartbeat),
            Part(keys.LINKS, self._links, lambda new: self.links.is_new(new.measured_links)),
        ]

    def _policy(self, new: FrontendSettings) -> Apply:
        configured = Orders(new.policy, new.rollout)
        orders = self.policy.orders().after(self.configured.orders, configured)
        self.policy.check(orders)

        def apply() -> None:
            self.configured.orders = configured
            self.policy.obey(orders)

        return apply

    def _shadows(self, new: FrontendSettings) -> Apply:
        shadows = self.policy.make_shadows(new.shadow)

        def apply() -> None:
            self.policy.shadows = shadows

        return apply

    def _rules(self, new: FrontendSettings) -> Apply:
        """What decisions depend on is the ledger's."""
        event = RulesChanged(self.clock(), new.guards, new.failover.retry_share, new.health, new.transfer)

        def apply() -> None:
            self.emit(event)
            self.dispatcher.elsewhere.settings = new.failover

        return apply

    def _intake(self, new: FrontendSettings) -> Apply:
        was = self.intake.settings
        settings = replace(IntakeSettings.of(new), route_key=was.route_key, text_block_bytes=was.text_block_bytes)

        def apply() -> None:
            self.intake.settings = settings

        return apply

    def _times(self, new: FrontendSettings) -> Apply:
        def apply() -> None:
            self.dispatcher.retime(new.timeouts)
            self.pool.connect_timeout_s = new.timeouts.connect_s

        return apply

    def _limits(self, new: FrontendSettings) -> Apply:
        """Of connections that are opened from now on; what is for all of them together holds at once."""

        def apply() -> None:
            self.server.limits = new.limits

        return apply

    def _graces(self, new: FrontendSettings) -> Apply:
        def apply() -> None:
            self.graces.shutdown_s, self.graces.ready_lag_s = new.shutdown_grace_s, new.ready_lag_s
            self.drains.grace_s, self.drains.cut_after_s = new.drain_grace_s, new.drain_cut_after_s

        return apply

    def _sampling(self, new: FrontendSettings) -> Apply:
        sampling = sampling_of(new.decision_log)

        def apply() -> None:
            self.recorder.sampling = sampling

        return apply

    def _nodes(self, new: FrontendSettings) -> Apply:
        return lambda: self.membership.offer(CONFIGURATION, new.sources)

    def _links(self, new: FrontendSettings) -> Apply:
        def apply() -> None:
            self.links.tell_file(new.measured_links)

        return apply

    def _heartbeat(self, new: FrontendSettings) -> Apply:
        def apply() -> None:
            self.prober.retime(ProbeTiming(interval_s=new.heartbeat_s))
            self.retime_canaries(new.health.canary_ms / 1000)

        return apply
