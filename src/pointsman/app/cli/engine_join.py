"""`pointsman engine --join`: an engine that tells front ends of itself, and drains before it stops."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import click

from pointsman.app.cli.admin_client import ADMIN_KEY_VARIABLE
from pointsman.app.cli.admin_trust import AdminTrust
from pointsman.app.cli.signals import Signals
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.discovery.record import WorkerRecord, record_of_json
from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.cluster.etcd.client import EtcdClient
from pointsman.edge.cluster.join.admin_joiner import AdminJoiner
from pointsman.edge.cluster.join.etcd_joiner import EtcdJoiner
from pointsman.edge.cluster.join.joiner import Joiner
from pointsman.edge.cluster.join.joining import Joining, JoinRecord, Leaves
from pointsman.edge.cluster.join.target import AdminTarget, EtcdTarget, parse_target
from pointsman.edge.cluster.members import NO_HOST
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.etcd import Etcd
from pointsman.edge.configuration.loader import load_file
from pointsman.edge.serving.certificates import Certificates, Renews
from pointsman.edge.serving.workers.settings import workers_prefix

F = TypeVar("F", bound=Callable[..., object])

_log = logging.getLogger("pointsman.cli")
_TTL, _GRACE = "15s", "10m"
_LEAST_TTL_S = 3
_ASK_S = 2.0
_EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts to listen at that nobody can be told."""


def join_options(command: F) -> F:
    """The options of `--join`, as keyword arguments that JoinFlags takes."""
    for option in (
        click.option(
            "--drain-grace",
            metavar="DURATION",
            help=f"With --join: what streams get on SIGTERM.  [default: {_GRACE}]",
        ),
        click.option(
            "--join-ttl", metavar="DURATION", help=f"With --join: gone after that, if it dies.  [default: {_TTL}]"
        ),
        click.option(
            "--role",
            type=click.Choice([role.value for role in Role]),
            help="With --join: which stages it computes.  [default: both]",
        ),
        click.option(
            "--topology",
            multiple=True,
            metavar="LEVEL=NAME",
            help="With --join: where it is, a level of the front ends' topology_levels (repeatable).",
        ),
        click.option(
            "--advertise", metavar="URL", help="With --join: where front ends reach it; default: --host and --port."
        ),
        click.option("--name", "join_name", help="With --join: its name; default: host:port of what is advertised."),
        click.option(
            "--join-config",
            type=click.Path(path_type=Path),
            help="With --join: configuration whose section etcd says how to be let in.",
        ),
        click.option(
            "--join",
            multiple=True,
            metavar="URL",
            help="Register: http://… of a front end's admin port (repeatable), etcd://HOST[:PORT][,…][/FLEET], or "
            "etcd for that of --join-config.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class JoinFlags:
    """What was given of `--join` and its companions."""

    targets: tuple[AdminTarget | EtcdTarget, ...]
    etcd: Etcd
    advertise: str | None
    name: str | None
    ttl_s: int
    grace_s: float
    more: Mapping[str, object] = field(default_factory=dict)
    """Further keys of its record: its role and place."""

    @classmethod
    def take(cls, options: dict[str, object]) -> JoinFlags | None:
        """Takes them out of a verb's options; None: it shall not join. Raises ConfigError that names the flag."""
        join = options.pop("join")
        config, advertise, name = (options.pop(key) for key in ("join_config", "advertise", "join_name"))
        role, topology = options.pop("role"), options.pop("topology")
        given_ttl, given_grace = (options.pop(key) for key in ("join_ttl", "drain_grace"))
        ttl = _duration("--join-ttl", given_ttl or _TTL)
        grace = _duration("--drain-grace", given_grace or _GRACE)
        assert isinstance(join, tuple)
        if not join:
            for flag, value in (
                ("--advertise", advertise),
                ("--name", name),
                ("--join-config", config),
                ("--join-ttl", given_ttl),
                ("--drain-grace", given_grace),
                ("--role", role),
                ("--topology", topology or None),
            ):
                if value is not None:
                    raise ConfigError(f"{flag}: is for --join, which is missing")
            return None
        if ttl.s < _LEAST_TTL_S or ttl.s != int(ttl.s):
            raise ConfigError(f"--join-ttl {ttl}: expected whole seconds, {_LEAST_TTL_S}s or more")
        if advertise is not None:
            advertise = _advertised(str(advertise))
        targets = tuple(parse_target(str(text)) for text in join)
        etcd = load_file(Path(str(config))).etcd if config is not None else Etcd()
        if any(isinstance(target, EtcdTarget) and not (target.endpoints or etcd.endpoints) for target in targets):
            raise ConfigError(
                "--join etcd: which one? Name it: etcd://HOST:PORT, or a --join-config with its endpoints"
            )
        more: dict[str, object] = {} if role is None else {"node_role": role}
        assert isinstance(topology, tuple)
        if topology:
            more["topology"] = dict(_place(str(text)) for text in topology)
        return cls(targets, etcd, advertise, None if name is None else str(name), int(ttl.s), grace.s, more)

    def check_host(self, host: str) -> None:
        """Raises ConfigError when an engine that listens at `host` can't say where it is."""
        if self.advertise is None and host in _EVERYWHERE:
            raise ConfigError(
                f"--advertise is missing: with --host {host or '0.0.0.0'} nobody knows under which address others "
                "reach this engine; give --advertise http://ADDRESS:PORT"
            )


async def serve_joined(
    engine: Leaves, url: str, more: Mapping[str, object], flags: JoinFlags, signals: Signals
) -> None:
    """Registers the engine that listens at `url` until cancelled, then drains it. Raises ConfigError for a bad name."""
    advertised = str(flags.advertise or url)
    name = flags.name or EngineUrl.parse(advertised).host_and_port
    record = JoinRecord(name, advertised, {**more, **flags.more})
    record_of_json(record.encoded(), "--name", WorkerRecord)
    _warn_of_loopback(advertised, flags.targets)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        trusts: list[Renews] = []
        joiners = [await _joiner(target, record, flags, session, stack, trusts) for target in flags.targets]
        certificates = Certificates((), *trusts)
        certificates.start()
        stack.push_async_callback(certificates.close)
        joining = Joining(engine, record, joiners)
        signals.hurry = joining.hurry

        async def ready() -> bool:
            return await _is_ready(session, url)

        task = asyncio.create_task(joining.run(ready), name="joining")
        try:
            await asyncio.wait([task])  # it goes on while the engine drains
            task.result()
        finally:
            await joining.leave(flags.grace_s, f"{name} was told to stop")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _joiner(
    target: AdminTarget | EtcdTarget,
    record: JoinRecord,
    flags: JoinFlags,
    session: aiohttp.ClientSession,
    stack: AsyncExitStack,
    trusts: list[Renews],
) -> Joiner:
    """Certificates that it needs are added to `trusts`."""
    if isinstance(target, AdminTarget):
        key = os.environ.get(ADMIN_KEY_VARIABLE, "").strip() or None
        trust = AdminTrust() if target.url.startswith("https:") else None
        trusts += [trust] if trust is not None else []
        shown = None if trust is None else lambda: trust.context
        return AdminJoiner(session, target.url, record.name, record.encoded(), flags.ttl_s, key, shown)
    access = EtcdAccess.of(flags.etcd, os.environ)
    trusts += [access.trust] if access.trust is not None else []
    if target.endpoints:
        access = replace(access, endpoints=target.endpoints)
    client = await stack.enter_async_context(EtcdClient(access))
    prefix = workers_prefix(target.fleet or flags.etcd.fleet)
    return EtcdJoiner(client, prefix, record.name, record.encoded(), flags.ttl_s)


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with asyncio.timeout(_ASK_S), session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _warn_of_loopback(advertised: str, targets: tuple[AdminTarget | EtcdTarget, ...]) -> None:
    if not _is_loopback(advertised):
        return
    for target in targets:
        urls = (target.url,) if isinstance(target, AdminTarget) else target.endpoints
        for url in urls:
            if not _is_loopback(url):
                _log.warning("%s is told to %s: other machines can't reach it there; see --advertise", advertised, url)
                return


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _advertised(text: str) -> str:
    try:
        url = EngineUrl.parse(text)
    except ValueError as error:
        raise ConfigError(f"--advertise {text!r}: expected {error}") from None
    host = urlsplit(url).hostname
    if host in (*_EVERYWHERE, *NO_HOST):
        raise ConfigError(f"--advertise {text!r}: {host} is no address under which others reach this engine")
    return str(url)


def _place(text: str) -> tuple[str, str]:
    level, separator, name = text.partition("=")
    if not (separator and level and name):
        raise ConfigError(f"--topology {text!r}: expected LEVEL=NAME, such as rack=r1")
    return level, name


def _duration(flag: str, value: object) -> Duration:
    try:
        return Duration.parse(value)
    except ValueError as error:
        raise ConfigError(f"{flag} {value!r}: expected {error}") from None
