"""`serve --processes N`: several front ends on one port, started by fork, watched, stopped together."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import click
import msgspec

from pointsman.app.cli.front_end import Membership, serve_here
from pointsman.app.cli.main import EXIT_ERROR
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.app.cli.siblings import SiblingsFile, runtime_folder
from pointsman.app.cli.switchboard import Switchboard
from pointsman.core.model.errors import ConfigError, PointsmanError
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.control_plane import ControlPlane
from pointsman.edge.configuration.decision_log import DecisionLog
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.engines.local.parent import die_with_parent
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.serving.settings import configured_orders
from pointsman.edge.wire.listening import refuse_taken

_log = logging.getLogger("pointsman.cli")

_RESTART_PAUSE_S = 1.0
_KILL_AFTER_S = 5.0
"""Beyond the grace that requests get."""
_POLL_S = 0.05
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_in_processes(tree: ConfigTree, count: int) -> int:
    """Serve with `count` front ends until a signal; the exit status.

    Raises ConfigError or EngineError before any starts.
    """
    trees = [_tree_of(tree, index) for index in range(count)]
    plane = tree.control_plane
    _refuse_taken_port(plane)
    last = f" to {plane.admin_port + count - 1}" if plane.admin_port else ""
    click.echo(
        f"pointsman serves port {plane.listen_port} with {count} front ends (admin ports {plane.admin_port}{last}). "
        "A switch of the policy or a rollout at one reaches all; each counts its own requests and learns its own "
        "prefixes."
    )
    sys.stdout.flush()
    siblings = _siblings_file()
    try:
        return _Supervisor(trees, plane.shutdown_grace.s + _KILL_AFTER_S, siblings).run()
    finally:
        if siblings is not None:
            siblings.close()


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
    return msgspec.structs.replace(tree, control_plane=changed, decision_log=_log_of(tree.decision_log, index))


def _log_of(log: DecisionLog, index: int) -> DecisionLog:
    """Each front end writes a file of its own: `decisions.jsonl` becomes `decisions.1.jsonl` and so on."""
    if log.path is None:
        return log
    path = Path(log.path)
    return msgspec.structs.replace(log, path=str(path.with_name(f"{path.stem}.{index + 1}{path.suffix}")))


def _without_rollout(tree: ConfigTree, policy: str) -> ConfigTree:
    """The rollout goes another way: by now another one may be in force, or its policy be that of all."""
    routing = tree.routing
    shadow = tuple(name for name in routing.shadow if name != policy)
    changed = msgspec.structs.replace(routing, policy=policy, rollout=None, shadow=shadow)
    return msgspec.structs.replace(tree, routing=changed)


def _refuse_taken_port(plane: ControlPlane) -> None:
    """Front ends that share a port would also share it with a stranger who does the same."""
    refuse_taken(plane.listen_host, plane.listen_port, "--port")


class _Supervisor:
    """Parent of the front ends. Runs no event loop and no thread, so fork is safe."""

    def __init__(self, trees: list[ConfigTree], kill_after_s: float, siblings: SiblingsFile | None) -> None:
        self._trees = trees
        self._siblings = siblings
        self._written: list[str] = []
        self._board = Switchboard(configured_orders(trees[0]))
        self._kill_after_s = kill_after_s
        self._children: dict[int, int] = {}
        self._stopping = False
        self._status = 0

    def run(self) -> int:
        """Start all, restart what ends, until a signal comes or a front end can't start at all."""
        before = {number: signal.signal(number, self._on_signal) for number in _STOP}
        try:
            due = dict.fromkeys(range(len(self._trees)), 0.0)
            while not self._stopping:
                now = time.monotonic()
                for index in [i for i, at in due.items() if at <= now]:
                    del due[index]
                    self._fork(index)
                self._board.exchange()
                for index in self._reap():
                    self._board.hang_up(index)
                    due[index] = time.monotonic() + _RESTART_PAUSE_S
                self._write_siblings()
                time.sleep(_POLL_S)
            self._stop_all()
        finally:
            self._board.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            self._send(signal.SIGKILL)
        self._stopping = True

    def _fork(self, index: int) -> None:
        parent = os.getpid()
        orders = self._board.orders
        tree = _without_rollout(self._trees[index], orders.policy)
        line = self._board.connect(index)
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
        pid = os.fork()
        if pid == 0:
            _in_child(lambda: self._serve(tree, line, orders.rollout), parent)
        line.close()
        self._children[pid] = index
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

    def _serve(self, tree: ConfigTree, line: socket.socket, rollout: RolloutOrder | None) -> int:
        """What a child does."""
        self._board.close()
        with line:
            return run_until_stopped(serve_here(tree, Membership(line, rollout, len(self._trees))))

    def _write_siblings(self) -> None:
        urls = [url for _, url in sorted(self._board.admin_urls.items())]
        # One that is being started again still counts: who asks for all must hear that one is missing.
        if self._siblings is None or urls == self._written or len(urls) < len(self._trees):
            return
        self._written = urls
        try:
            self._siblings.write(urls)
        except OSError as error:
            _log.warning("`pointsman status` will show one of the front ends at a time: %s", error)

    def _reap(self) -> list[int]:
        """The front ends that ended by themselves and shall start again."""
        ended = []
        for pid, index in list(self._children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            del self._children[pid]
            code = os.waitstatus_to_exitcode(status)
            if code == EXIT_ERROR:  # it has said why; another try would say the same
                self._stopping, self._status = True, EXIT_ERROR
            else:
                _log.warning("front end %d ended with status %d; starting it again", index + 1, code)
                ended.append(index)
        return ended

    def _stop_all(self) -> None:
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + self._kill_after_s
        while self._children:
            for pid in list(self._children):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._children[pid]
            if time.monotonic() > deadline:
                _log.warning("%d front ends did not stop in time and are killed", len(self._children))
                self._send(signal.SIGKILL)
                deadline = float("inf")
            time.sleep(_POLL_S)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _in_child(work: Callable[[], int], parent: int) -> None:
    """Never returns. A session of its own: Ctrl-C in the terminal reaches the parent, which tells the children."""
    status = 1
    try:
        os.setsid()
        for number in _STOP:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
        die_with_parent(parent)
        status = work()
    except PointsmanError as error:
        click.echo(f"pointsman: {error}", err=True)
        status = EXIT_ERROR
    except Exception:
        _log.exception("a front end failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
