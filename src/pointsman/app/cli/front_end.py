"""One front end in this process, for `up`, `serve` and its processes."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from pointsman.app.cli.descriptors import connections_that_fit, highest_for_clients
from pointsman.app.cli.seats import Seat
from pointsman.app.cli.signals import Signals
from pointsman.app.cli.switchboard import Wishes, beat, follow
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.reload.source import ConfigSource
from pointsman.edge.serving.rollout_order import Orders
from pointsman.edge.serving.settings import FrontendSettings

SETTLE_S = 5.0
"""What engines get to be asked before a member takes the place of another one."""


def front_end_settings(tree: ConfigTree) -> FrontendSettings:
    """The settings of a front end of this process, which takes as many connections as the system lets it."""
    settings = FrontendSettings.of(tree, os.environ)
    fit = connections_that_fit()
    wanted = settings.limits.max_connections
    limits = dataclasses.replace(
        settings.limits,
        max_connections=fit if wanted is None else min(wanted, fit),
        max_descriptor=highest_for_clients(),
    )
    return dataclasses.replace(settings, limits=limits)


def keep_for_good() -> None:
    """Takes what start-up made out of every later garbage collection. Call it once a front end listens.

    Else the full collections of a busy front end walk all modules and tables again, and hold every stream meanwhile.
    """
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, slots=True)
class Membership:
    """Of a front end among others that a supervisor started."""

    line: socket.socket
    """To the supervisor."""
    orders: Orders
    """Who decides: in force, instead of the configuration's."""
    count: int
    """Of all."""
    seat: Seat
    """Where it listens."""
    bus: Path
    """Folder in which they find each other's sockets."""


async def serve_here(
    tree: ConfigTree, signals: Signals, reread: Callable[[], ConfigTree], member: Membership | None = None
) -> int:
    """Serve until cancelled; then requests in flight get `shutdown_grace`. Returns when a member was replaced.

    A member shares the port, the policy and the rollout with the supervisor's other front ends. `reread` gives the
    configuration anew, on SIGHUP and `POST /v1/reload`.
    """
    # It beats until the process ends: one that stands still while it stops is killed as well.
    beating = None if member is None else asyncio.create_task(beat(member.line), name="beat")
    try:
        return await _serve(tree, signals, reread, member)
    finally:
        if beating is not None:
            beating.cancel()


async def _serve(
    tree: ConfigTree, signals: Signals, reread: Callable[[], ConfigTree], member: Membership | None
) -> int:
    wishes = Wishes()
    settings = _settings(tree, member)
    if member is not None:
        settings = dataclasses.replace(settings, policy=member.orders.policy, rollout=member.orders.rollout)
    roll_over = None if member is None else wishes.note_roll_over
    source = ConfigSource(tree, reread, partial(_settings, member=member), wishes.note_reload, roll_over)
    frontend = Frontend(settings, config=source)
    await frontend.start()
    keep_for_good()
    signals.hurry, signals.reload = frontend.hurry, frontend.reload_by_signal
    replaced = False
    try:
        if member is None:
            click.echo(f"pointsman serves {frontend.url}/v1  (admin: {frontend.admin_url}; Ctrl-C stops)")
            await asyncio.Event().wait()
        else:
            await follow(member.line, frontend.admin_url, frontend.policy, wishes)
            await frontend.retire(frontend.graces.shutdown_s)
            replaced = True
    finally:
        if not replaced:
            await frontend.close(frontend.graces.shutdown_s, frontend.graces.ready_lag_s)
    return 0


def _settings(tree: ConfigTree, member: Membership | None) -> FrontendSettings:
    settings = front_end_settings(tree)
    if member is None:
        return settings
    return dataclasses.replace(
        settings,
        watchers=member.count,
        client_sockets=member.seat.client,
        admin_sockets=member.seat.admin,
        settle_s=SETTLE_S,
        replicas=dataclasses.replace(settings.replicas, folder=member.bus, patient=True),
    )
