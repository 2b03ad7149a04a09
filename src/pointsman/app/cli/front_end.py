"""One front end in this process, for `up`, `serve` and its processes."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import socket
from dataclasses import dataclass

import click

from pointsman.app.cli.descriptors import connections_that_fit
from pointsman.app.cli.switchboard import follow
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.serving.settings import FrontendSettings


def front_end_settings(tree: ConfigTree, *, reuse_port: bool = False) -> FrontendSettings:
    """The settings of a front end of this process, which takes as many connections as the system lets it."""
    settings = FrontendSettings.of(tree, os.environ, reuse_port=reuse_port)
    limits = dataclasses.replace(settings.limits, max_connections=connections_that_fit())
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
    rollout: RolloutOrder | None
    """In force, instead of the configuration's."""
    count: int
    """Of all."""


async def serve_here(tree: ConfigTree, member: Membership | None = None) -> int:
    """Serve until cancelled; then requests in flight get `shutdown_grace`. Never returns by itself.

    A member shares the port, the policy and the rollout with the supervisor's other front ends.
    """
    settings = front_end_settings(tree, reuse_port=member is not None)
    if member is not None:
        settings = dataclasses.replace(settings, rollout=member.rollout, watchers=member.count)
    frontend = Frontend(settings)
    await frontend.start()
    keep_for_good()
    try:
        if member is None:
            click.echo(f"pointsman serves {frontend.url}/v1  (admin: {frontend.admin_url}; Ctrl-C stops)")
            await asyncio.Event().wait()
        else:
            await follow(member.line, frontend.admin_url, frontend.policy)
    finally:
        await frontend.close(tree.control_plane.shutdown_grace.s)
    return 0
