"""`pointsman node`: what runs beside engines on each machine."""

from __future__ import annotations

import asyncio
import time

import click

from pointsman.app.cli.node_token import NODE_TOKEN_VARIABLE, node_token, token_option
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.links_file import MOST_NAME
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.configuration.tree import is_loopback
from pointsman.edge.node.documents import DEFAULT_PORT
from pointsman.edge.node.server import NodeServer
from pointsman.edge.telemetry.logs import LEVELS, set_up_logs

_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"


@click.command()
@click.option("--name", default="", help="Of this machine, as front ends know it; default: the host it is called by.")
@click.option("--listen", default=_LISTEN, show_default=True, metavar="HOST:PORT", help="Where it is asked.")
@click.option(
    "--probe-port",
    type=click.IntRange(0, 65535),
    help="Where bytes of probes go, at the same host; 0 takes a free one.  [default: the port after that of --listen]",
)
@token_option
@click.option("--open", "is_open", is_flag=True, help="Other machines may ask without a token.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is logged.")
def node(name: str, listen: str, probe_port: int | None, token_env: str | None, is_open: bool, log_level: str) -> int:
    """Run what stands beside engines on a machine: it measures links to other machines (`pointsman doctor links`)."""
    set_up_logs(log_level)
    if len(name) > MOST_NAME:
        raise ConfigError(f"--name: {len(name)} characters; give at most {MOST_NAME}")
    host, port = _place(listen)
    token = node_token(token_env)
    if not is_loopback(host) and token is None and not is_open:
        raise ConfigError(
            f"--listen {listen}: lets other machines make this one send gigabytes, and no token is asked for: set "
            f"{NODE_TOKEN_VARIABLE} (or --token-env) here and where `pointsman doctor links` runs, or say --open"
        )
    if probe_port is None:
        probe_port = 0 if port == 0 else port + 1
        if probe_port > 65535:
            raise ConfigError(f"--listen {listen}: there is no port after {port}; give --probe-port")
    return run_until_stopped(_serve(NodeServer(time.monotonic, name=name, token=token), host, port, probe_port, token))


async def _serve(server: NodeServer, host: str, port: int, probe_port: int, token: Secret | None) -> int:
    await server.start(host, port, probe_port)
    try:
        url = EngineUrl.at(host, server.port)
        how = "asks for its token" if token is not None else "asks for no token"
        click.echo(f"node at {url} (probes: port {server.probes.port}), {how}  (Ctrl-C stops)")
        await asyncio.Event().wait()
    finally:
        await server.close()
    return 0


def _place(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen {listen}: expected HOST:PORT, such as 0.0.0.0:{DEFAULT_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)
