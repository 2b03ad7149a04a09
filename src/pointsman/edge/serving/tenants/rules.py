"""Rules: which limits a subject has, by the configuration and the file of keys."""

from __future__ import annotations

from pointsman.core.limits.book import OVERFLOW
from pointsman.core.limits.limits import NO_LIMITS, Limits
from pointsman.edge.configuration.tenants import TenantLimits, Tenants
from pointsman.edge.serving.tenants.key_ring import KeyRing
from pointsman.edge.serving.tenants.principal import parts


class Rules:
    """In force at one time. Never changed: other files give other rules."""

    def __init__(self, tenants: Tenants, ring: KeyRing) -> None:
        self._default = tenants.default
        self._named = tenants.named
        self._ring = ring
        self._limits = {id(tenant): tenant.limits() for tenant in (tenants.default, *tenants.named.values())}
        every = (tenants.default, *tenants.named.values())
        self.any = any(each.limits().any for tenant in every for each in (tenant, *tenant.models.values())) or any(
            key.limits is not None for key in ring.keys
        )
        """There are limits at all."""
        self.by_model = any(tenant.models for tenant in every)
        """Some are of single models."""
        self.named_parties = len(tenants.named) + len(ring.keys) + sum(len(tenant.models) for tenant in every)

    def limits_of(self, subject: str) -> Limits:
        """NO_LIMITS where there are none."""
        kind, name, model = parts(subject)
        if kind == "tenant":
            return self._limits[id(self._of(name))]
        if kind == "key":
            return self._ring.limits_of(name)
        if kind == "model":
            found = self._of(name).models.get(model)
            return NO_LIMITS if found is None else found.limits()
        return self._limits[id(self._default)] if subject == OVERFLOW else NO_LIMITS

    def has_model(self, tenant: str, model: str) -> bool:
        """That tenant has limits for that model."""
        return model in self._of(tenant).models

    def _of(self, tenant: str) -> TenantLimits:
        return self._named.get(tenant, self._default)
