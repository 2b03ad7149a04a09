"""EtcdAccess: where etcd is, and how to be let in."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.etcd import Etcd
from pointsman.edge.configuration.secret import secret_of_environment
from pointsman.edge.wire.trust import Trust, file_reason, load_chain


class EtcdTrust:
    """How etcd is checked, and what it is shown; from files that can be read again. Raises ConfigError, here and never
    again."""

    def __init__(self, section: Etcd) -> None:
        self._section = section
        self._trust = Trust(lambda: _ssl_context(section))

    @property
    def context(self) -> ssl.SSLContext:
        """For connections that are made now."""
        return self._trust.context

    def files(self) -> list[Path]:
        """All that are read."""
        section = self._section
        return [Path(name) for name in (section.ca, section.certificate, section.key) if name is not None]

    def renew(self) -> list[str]:
        """Read the files again; what is wrong with them, and then what was read before holds."""
        try:
            self._trust.renew()
        except ConfigError as error:
            return [str(error)]
        return []


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Endpoints of one cluster. `trust` is for those with https; None trusts what the system trusts."""

    endpoints: tuple[str, ...]
    """Base URLs of client ports, tried in this order."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    trust: EtcdTrust | None = None
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
            trust=None if section.ca is None and section.certificate is None else EtcdTrust(section),
            timeout_s=section.timeout.s,
        )


def _password(section: Etcd, environ: Mapping[str, str]) -> str | None:
    if section.password_env is None:
        return None if section.password is None else section.password.reveal()
    try:
        return secret_of_environment(section.password_env, environ).reveal()
    except ConfigError as error:
        raise ConfigError(f"etcd.password_env: {error}".replace("api_key_env", "password_env")) from None


def _ssl_context(section: Etcd) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=section.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"etcd.ca: can't use {section.ca!r}: {file_reason(error)}") from None
    if section.certificate is not None:
        load_chain(context, section.certificate, section.key, "etcd")
    return context
