"""EtcdAccess: where etcd is, and how to be let in."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.etcd import Etcd
from pointsman.edge.configuration.secret import secret_of_environment


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Endpoints of one cluster. `ssl_context` is for those with https; None trusts what the system trusts."""

    endpoints: tuple[str, ...]
    """Base URLs of client ports, tried in this order."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None
    timeout_s: float = 3.0
    """For one endpoint to answer."""

    @classmethod
    def of(cls, section: Etcd, environ: Mapping[str, str]) -> EtcdAccess:
        """From the configuration; `environ` holds the variable that `password_env` names.

        Raises ConfigError when it is missing or a certificate can't be used.
        """
        return cls(
            endpoints=tuple(str(endpoint) for endpoint in section.endpoints),
            user=section.user,
            password=_password(section, environ),
            ssl_context=_ssl_context(section),
            timeout_s=section.timeout.s,
        )


def _password(section: Etcd, environ: Mapping[str, str]) -> str | None:
    if section.password_env is None:
        return None if section.password is None else section.password.reveal()
    try:
        return secret_of_environment(section.password_env, environ).reveal()
    except ConfigError as error:
        raise ConfigError(f"etcd.password_env: {error}".replace("api_key_env", "password_env")) from None


def _ssl_context(section: Etcd) -> ssl.SSLContext | None:
    if section.ca is None and section.certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=section.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"etcd.ca: can't use {section.ca!r}: {error}") from None
    if section.certificate is not None:
        try:
            context.load_cert_chain(section.certificate, section.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"etcd.certificate: can't use {section.certificate!r} with key {section.key!r}: {error}"
            ) from None
    return context
