"""Metrics of keys and limits, made when they are asked for. Labels are bounded: see BoundedCounter."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.serving.tenants.principal import parts
from pointsman.edge.serving.tenants.tenancy import Tenancy
from pointsman.edge.telemetry import names
from pointsman.edge.telemetry.bounded import OTHERS, BoundedCounter


class TenancyCollector(Collector):
    """Registered with a prometheus_client registry; empty where there are neither keys nor limits."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        tenancy = self._tenancy
        if not tenancy.gate.active:
            return
        counts = tenancy.counts
        yield counter(names.TENANT_REQUESTS, ("tenant",), (((t,), n) for t, n in counts.requests.items()))
        yield counter(names.TENANT_TOKENS, ("tenant",), (((t,), n) for t, n in counts.tokens.items()))
        yield counter(names.TENANT_LIMITED, ("tenant", "limit"), counts.limited.items())
        yield gauge(names.TENANT_RUNNING, ("tenant",), (((t,), n) for t, n in self._running().items()))
        yield gauge(names.LIMIT_ACCOUNTS, (), [((), len(tenancy.book))])
        yield counter(names.LIMITS_TOLD, (), [((), counts.told)])
        yield counter(names.LIMITS_UNREADABLE, (), [((), counts.unreadable)])
        if tenancy.ring is not None:
            yield from self._keys()

    def _keys(self) -> Iterator[MetricFamily]:
        tenancy, ring = self._tenancy, self._tenancy.ring
        assert ring is not None
        counts, expired = tenancy.counts, ring.expired(tenancy.epoch_s())
        yield counter(names.KEY_FAULTS, ("reason",), (((str(f),), n) for f, n in counts.key_faults.items()))
        yield counter(names.KEY_REQUESTS, ("key",), (((k,), n) for k, n in counts.keys.items()))
        yield gauge(names.KEYS, ("state",), [(("good",), len(ring.keys) - expired), (("expired",), expired)])
        yield counter(names.KEYS_RELOADS, ("outcome",), (((o,), n) for o, n in counts.reloads.items()))
        yield gauge(names.KEYS_BROKEN, (), [((), 1 if tenancy.keys_fault else 0)])

    def _running(self) -> BoundedCounter[str]:
        found: BoundedCounter[str] = BoundedCounter(OTHERS)
        for account in self._tenancy.book:
            kind, name, _ = parts(account.subject)
            if kind == "tenant" and account.running:
                found.add(name, account.running)
        return found
