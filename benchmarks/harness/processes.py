"""Starts, awaits and stops the processes of a benchmark: each leads a process group, and is stopped by its id."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

_STOP_S = 5.0


class BenchmarkError(Exception):
    """A benchmark can't run or gave numbers that can't be used; says what to do."""


class Processes:
    """The processes of one benchmark run; `stop_all` ends every one of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """For logs and what the processes exchange through files; deleted at the end."""
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(
        self, name: str, command: Sequence[str], *, core: int | None = None, env: Mapping[str, str] | None = None
    ) -> int:
        """Start a process, on one core if given; its output goes to NAME.log. Returns its pid."""
        pinned = ["taskset", "-c", str(core), *command] if core is not None else list(command)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                pinned,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._running.append((name, process))
        return process.pid

    def await_http(self, name: str, port: int, path: str, *, contains: str = "", timeout_s: float = 60.0) -> None:
        """Wait until `GET path` on a process started as `name` answers 200 with `contains` in the body."""
        deadline = time.monotonic() + timeout_s
        while not _answers(port, path, contains):
            self._check_alive(name)
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{name} is not ready after {timeout_s:.0f} s:\n{_tail(self._log(name))}")
            time.sleep(0.1)

    def pids(self) -> tuple[int, ...]:
        """Of all processes that run now."""
        return tuple(process.pid for _, process in self._running)

    def stop(self, pid: int) -> None:
        """Stop one process and those that it started."""
        for entry in self._running:
            if entry[1].pid == pid:
                self._running.remove(entry)
                _stop(entry[1])
                return

    def stop_all(self) -> None:
        """Stop all, the last started first."""
        while self._running:
            _stop(self._running.pop()[1])

    def _check_alive(self, name: str) -> None:
        for known, process in self._running:
            if known == name and process.poll() is not None:
                raise BenchmarkError(f"{name} ended with status {process.returncode}:\n{_tail(self._log(name))}")

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """Processes that are stopped at the end, also on Ctrl-C and SIGTERM."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    with tempfile.TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True) as directory:
        group = Processes(Path(directory))
        try:
            yield group
        finally:
            group.stop_all()
            signal.signal(signal.SIGTERM, previous)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def raise_file_limit(needed: int) -> None:
    """Raise the limit of open files for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchmarkError(
            f"needs {needed} open files, the hard limit is {hard}: raise it with `ulimit -Hn {needed}`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _answers(port: int, path: str, contains: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status == 200 and contains in answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    _signal_group(process, signal.SIGKILL)  # also what it may have left behind
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _tail(log: Path, lines: int = 12) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
