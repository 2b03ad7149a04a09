"""`pointsman serve`: the front end before engines that already run."""

from __future__ import annotations

from pathlib import Path

import click

from pointsman.app.cli.configured import FrontendFlags, frontend_options, load_tree
from pointsman.app.cli.front_end import serve_here
from pointsman.app.cli.processes import serve_in_processes
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.app.cli.signals import Signals
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.telemetry.logs import set_up_logs


@click.command()
@click.option("--engine", "engines", multiple=True, metavar="URL", help="An engine; repeat for more. Instead of nodes.")
@click.option("--wait-for-engines", is_flag=True, help="Start without any: `pointsman engine --join` registers them.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, help="Front ends that share the port (1).")
@frontend_options
def serve(
    engines: tuple[str, ...],
    wait_for_engines: bool,
    processes: int,
    config: Path | None,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    policy: str | None,
    log_level: str | None,
) -> int:
    """Serve the OpenAI API before engines that already run."""
    set_up_logs(log_level or "info")
    flags = FrontendFlags(config, host, port, admin_port, policy, engines)

    def read() -> ConfigTree:
        tree = load_tree(flags)
        # Also when it is read again: a file that is empty or half written must not send all engines away.
        if not (tree.execution_group.nodes or tree.discovery.file or tree.discovery.etcd or wait_for_engines):
            raise ConfigError(
                "no engines: give --engine URL, execution-group.nodes or discovery in a file with --config, or "
                "--wait-for-engines if they register themselves"
            )
        return tree

    tree = read()
    if processes > 1:
        return serve_in_processes(tree, processes, read)
    signals = Signals()
    return run_until_stopped(serve_here(tree, signals, read), signals)
