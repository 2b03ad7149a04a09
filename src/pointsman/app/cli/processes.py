"""`serve --processes N`: several front ends on one port, started by fork, watched, replaced and stopped together."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from pointsman.app.cli.bus_folder import bus_folder
from pointsman.app.cli.front_end import Membership, serve_here
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.app.cli.seats import Seat, take_seat
from pointsman.app.cli.siblings import SiblingsFile, runtime_folder
from pointsman.app.cli.signals import Signals
from pointsman.app.cli.supervisor import Supervisor
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.decision_log import DecisionLog
from pointsman.edge.configuration.replicas import Replicas
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.rollout_order import Orders
from pointsman.edge.wire.listening import refuse_taken

_log = logging.getLogger("pointsman.cli")

_KILL_AFTER_S = 5.0
"""Beyond the grace that requests get."""


def serve_in_processes(tree: ConfigTree, count: int, reread: Callable[[], ConfigTree]) -> int:
    """Serve with `count` front ends until a signal; the exit status. `reread` gives the configuration anew.

    Raises ConfigError or EngineError before any starts.
    """
    trees = _trees_of(tree, count)
    plane = tree.control_plane
    _refuse_taken_port(plane)
    with ExitStack() as stack:
        seats = []
        for one in trees:
            at = one.control_plane
            seats.append(take_seat(at.listen_host, at.listen_port, at.admin_host, at.admin_port))
            stack.callback(seats[-1].close)
        last = f" to {plane.admin_port + count - 1}" if plane.admin_port else ""
        click.echo(
            f"pointsman serves port {plane.listen_port} with {count} front ends (admin ports "
            f"{plane.admin_port}{last}). A switch of the policy or a rollout at one reaches all."
        )
        sys.stdout.flush()
        siblings = _siblings_file()
        if siblings is not None:
            stack.callback(siblings.close)

        folder = stack.enter_context(bus_folder(None if siblings is None else runtime_folder(os.environ)))

        def serve(index: int, tree: ConfigTree, seat: Seat, line: socket.socket, orders: Orders) -> int:
            signals = Signals(supervised=True)
            member = Membership(line, orders, count, seat, folder)
            work = serve_here(tree, signals, lambda: _trees_of(reread(), count)[index], member)
            return run_until_stopped(work, signals)

        def again() -> list[ConfigTree]:
            new = _trees_of(reread(), count)
            return [_with_ports_of(one, old) for one, old in zip(new, trees, strict=True)]

        return Supervisor(trees, seats, serve, _patience_s, siblings, again).run()


def _patience_s(tree: ConfigTree) -> float:
    return tree.control_plane.shutdown_grace.s + _KILL_AFTER_S


def _trees_of(tree: ConfigTree, count: int) -> list[ConfigTree]:
    trees = [_tree_of(tree, index) for index in range(count)]
    _refuse_crossing_ports(trees)
    return trees


def _refuse_crossing_ports(trees: list[ConfigTree]) -> None:
    """Ranges that begin apart can meet."""
    others = {tree.control_plane.admin_port: "--admin-port" for tree in trees if tree.control_plane.admin_port}
    others[trees[0].control_plane.listen_port] = "--port"
    for index, tree in enumerate(trees):
        place = tree.replicas.listen
        if place is not None and place.port in others:
            raise ConfigError(
                f"--processes: front end {index + 1} would tell others of its load at port {place.port}, which is one "
                f"of {others[place.port]}; choose another port in replicas.listen (a port for each front end, "
                "from there on)"
            )


def _with_ports_of(tree: ConfigTree, old: ConfigTree) -> ConfigTree:
    """Sockets are there for good. Raises ConfigError where the two exclude each other."""
    plane, was = tree.control_plane, old.control_plane
    ports = {key: getattr(was, key) for key in ("listen_host", "listen_port", "admin_host", "admin_port")}
    changed = [key for key, value in ports.items() if getattr(plane, key) != value]
    if not changed:
        return tree
    _log.warning("control-plane: %s can't change while front ends run; start anew for that", ", ".join(changed))
    try:
        return msgspec.structs.replace(tree, control_plane=msgspec.structs.replace(plane, **ports))
    except KeyConflictError as error:
        raise ConfigError(f"control-plane.{error.key}: {error.message}") from None


def _siblings_file() -> SiblingsFile | None:
    try:
        return SiblingsFile(runtime_folder(os.environ))
    except ConfigError as error:
        _log.warning("`pointsman status` will show one of the front ends at a time: %s", error)
        return None


def _tree_of(tree: ConfigTree, index: int) -> ConfigTree:
    plane = tree.control_plane
    if plane.listen_port == 0:
        raise ConfigError("--processes: several front ends can't share a free port; give --port")
    admin_port = plane.admin_port + index if plane.admin_port else 0
    if admin_port > 65535:
        raise ConfigError(f"--processes: admin port {plane.admin_port} + {index} is above 65535; lower --admin-port")
    try:
        changed = msgspec.structs.replace(plane, admin_port=admin_port)
    except KeyConflictError as error:
        raise ConfigError(f"--processes: the admin port of front end {index + 1}: {error.message}") from None
    log, replicas = _log_of(tree.decision_log, index), _replicas_of(tree.replicas, index)
    return msgspec.structs.replace(tree, control_plane=changed, decision_log=log, replicas=replicas)


def _replicas_of(replicas: Replicas, index: int) -> Replicas:
    """Each front end tells others of its load at a port of its own, as with admin ports."""
    changed = {}
    for key in ("listen", "advertise"):
        place = getattr(replicas, key)
        if place is not None and place.port:
            if place.port + index > 65535:
                raise ConfigError(f"--processes: replicas.{key}: port {place.port} + {index} is above 65535; lower it")
            changed[key] = place.with_port(place.port + index)
    return msgspec.structs.replace(replicas, **changed)


def _log_of(log: DecisionLog, index: int) -> DecisionLog:
    """Each front end writes a file of its own: `decisions.jsonl` becomes `decisions.1.jsonl` and so on."""
    if log.path is None:
        return log
    path = Path(log.path)
    return msgspec.structs.replace(log, path=str(path.with_name(f"{path.stem}.{index + 1}{path.suffix}")))


def _refuse_taken_port(plane: ControlPlane) -> None:
    """Front ends that share a port would also share it with a stranger who does the same."""
    refuse_taken(plane.listen_host, plane.listen_port, "--port")
