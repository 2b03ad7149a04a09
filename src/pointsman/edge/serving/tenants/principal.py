"""Principal: who asks."""

from __future__ import annotations

from dataclasses import dataclass

ANONYMOUS = "anonymous"
"""Under which requests are limited and counted that say nothing of a tenant."""
_MODEL = "\n"
"""Between a tenant and a model; names can't hold it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose request it is; `subjects` have accounts where limits are set."""

    tenant: str | None
    key_id: str | None
    """Of the API key; None where nobody is asked for one."""
    subjects: tuple[str, ...]

    @classmethod
    def of_key(cls, tenant: str, key_id: str) -> Principal:
        """Somebody with a key."""
        return cls(tenant, key_id, (tenant_subject(tenant), f"key:{key_id}"))

    @classmethod
    def of_tenant(cls, tenant: str | None) -> Principal:
        """Somebody who was not asked for a key."""
        return cls(tenant, None, (tenant_subject(tenant or ANONYMOUS),))

    @property
    def name(self) -> str:
        """The tenant's for people."""
        return self.tenant or ANONYMOUS


def tenant_subject(tenant: str) -> str:
    """Of all that a tenant asks."""
    return f"tenant:{tenant}"


def model_subject(tenant: str, model: str) -> str:
    """Of what a tenant asks of one model."""
    return f"model:{tenant}{_MODEL}{model}"


def shown(subject: str) -> str:
    """For people: `tenant acme`, `key k1`, `model big of tenant acme`."""
    kind, _, name = subject.partition(":")
    if kind == "model":
        tenant, _, model = name.partition(_MODEL)
        return f"model {model} of tenant {tenant}"
    return f"{kind} {name}" if name else kind


def parts(subject: str) -> tuple[str, str, str]:
    """Kind (tenant, key, model), name, and the model."""
    kind, _, rest = subject.partition(":")
    name, _, model = rest.partition(_MODEL) if kind == "model" else (rest, "", "")
    return kind, name, model
