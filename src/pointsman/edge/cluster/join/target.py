"""JoinTarget: whom an engine tells of itself, as `--join` names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.etcd import FLEET_PATTERN, EtcdUrl

EXPECTED = "http://HOST:PORT of a front end's admin port, or etcd://HOST:PORT[,HOST:PORT…][/FLEET]"
_SCHEMES = {"etcd": "http", "etcds": "https"}


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """The admin port of one front end."""

    url: str


@dataclass(frozen=True, slots=True)
class EtcdTarget:
    """An etcd, and the fleet that is joined there; no endpoints: those of the configuration."""

    endpoints: tuple[str, ...] = ()
    fleet: str | None = None


def parse_target(text: str) -> AdminTarget | EtcdTarget:
    """Read `http://…`, `https://…`, `etcd://…`, `etcds://…` (with TLS) or `etcd`. Raises ConfigError."""
    scheme, separator, rest = text.strip().partition("://")
    if scheme == "etcd" and not separator:
        return EtcdTarget()
    try:
        if scheme in _SCHEMES and separator:
            return _etcd(_SCHEMES[scheme], rest)
        return AdminTarget(str(EngineUrl.parse(text)))
    except ValueError:
        raise ConfigError(f"--join {text!r}: expected {EXPECTED}") from None


def _etcd(scheme: str, rest: str) -> EtcdTarget:
    hosts, _, fleet = rest.partition("/")
    if fleet and re.fullmatch(FLEET_PATTERN, fleet) is None:
        raise ValueError
    endpoints = []
    for host in hosts.split(","):
        url = EtcdUrl.parse(f"{scheme}://{host}")
        endpoints.append(str(url) if urlsplit(url).port is not None else f"{url}:2379")
    return EtcdTarget(tuple(endpoints), fleet or None)
