"""Flags that stand for keys of the configuration, and the tree that results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.loader import load_file
from pointsman.edge.configuration.overrides import Override, apply_overrides, engine_override
from pointsman.edge.configuration.routing import Routing
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.telemetry.logs import LEVELS

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class FrontendFlags:
    """What was given on the command line; None: not given."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    admin_port: int | None = None
    policy: str | None = None
    engines: Sequence[str] = ()


def frontend_options(command: F) -> F:
    """`--config --host --port --admin-port --policy --log-level`."""
    plane = ControlPlane()
    options = (
        click.option("--config", type=click.Path(path_type=Path), help="Configuration file (docs/configuration.md)."),
        click.option("--host", help=f"Address to listen at ({plane.listen_host}; 0.0.0.0 lets other machines in)."),
        click.option("--port", type=int, help=f"Port for clients ({plane.listen_port}; 0 takes a free one)."),
        click.option("--admin-port", type=int, help=f"Port for metrics, status and control ({plane.admin_port})."),
        click.option("--policy", help=f"Who decides ({Routing().policy}; `pointsman policies` lists all)."),
        click.option("--log-level", type=click.Choice(LEVELS), help="Least severity of what is logged."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def load_tree(flags: FrontendFlags) -> ConfigTree:
    """The file's configuration with the flags' values over it. Raises ConfigError."""
    tree = ConfigTree() if flags.config is None else load_file(flags.config)
    given = (
        Override("--host", "control-plane", "listen_host", flags.host),
        Override("--port", "control-plane", "listen_port", flags.port),
        Override("--admin-port", "control-plane", "admin_port", flags.admin_port),
        Override("--policy", "routing", "policy", flags.policy),
    )
    overrides = [override for override in given if override.value is not None]
    if flags.engines:
        overrides.append(engine_override(flags.engines))
    return apply_overrides(tree, overrides)
