"""EtcdAccess: where etcd is, and how to be let in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.edge.configuration.etcd import Etcd
from pointsman.edge.configuration.named import named
from pointsman.edge.configuration.secret import secret_of_environment
from pointsman.edge.wire.trust import Trust, trust_of


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Endpoints of one cluster. `trust` is for those with https; None trusts what the system trusts."""

    endpoints: tuple[str, ...]
    """Base URLs of client ports, tried in this order."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    trust: Trust | None = None
    timeout_s: float = 3.0
    """For one endpoint to answer."""

    @classmethod
    def of(cls, section: Etcd, environ: Mapping[str, str]) -> EtcdAccess:
        """From the configuration; `environ` holds the variable that `password_env` names.

        Raises ConfigError when it is missing or a certificate can't be used.
        """
        plain = section.ca is None and section.certificate is None
        return cls(
            endpoints=tuple(str(endpoint) for endpoint in section.endpoints),
            user=section.user,
            password=_password(section, environ),
            trust=None if plain else trust_of(section.ca, section.certificate, section.key, "etcd"),
            timeout_s=section.timeout.s,
        )


def _password(section: Etcd, environ: Mapping[str, str]) -> str | None:
    if section.password_env is None:
        return None if section.password is None else section.password.reveal()
    with named("etcd.password_env"):
        return secret_of_environment(section.password_env, environ, "password_env").reveal()
