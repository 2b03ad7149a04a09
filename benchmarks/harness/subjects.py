"""The front ends under test: how each is started, and which are installed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness import kv_status, mock_answers
from harness.mock_kv import Beginnings
from harness.processes import BenchmarkError, Processes, free_ports

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PEERS = ROOT / ".venv-peers"
DYNAMO = ROOT / ".venv-dynamo"
TOKENIZER = DYNAMO / "model"
EXACT_SUBJECT = "pointsman auto (cost)"
HELD_AT_START = (Beginnings(), Beginnings(prefix_words=1_800, tail_words=200, history_messages=9))
"""What engines with KV events hold before the load begins: the short prompts' beginnings, and long histories."""
FRONT_END_CORE = 1
HARNESS_CORE = 0
_MAX_STREAMS = "8192"


@dataclass(frozen=True, slots=True)
class Running:
    """A front end that answers."""

    name: str
    port: int
    model: str
    pid: int | None
    """Root of the front end's process tree; None for the engine asked directly."""
    own_engine: bool = False
    """It is measured before a mock engine of its own, so its times cannot be compared with the mock's."""
    admin_port: int | None = None
    pace_port: int | None = None
    """Where the pace of the mock engine behind it is set; None: it has an engine of another kind."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A front end that a benchmark can start."""

    name: str
    version: Callable[[], str | None]
    """None = not installed."""
    start: Callable[[Processes, Sequence[int]], Running]
    """Starts it before engines on these ports and waits until it answers."""


def harness_env() -> dict[str, str]:
    """Environment in which `python -m harness.…` works, and finds else what this process finds."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))}


def harness_command(module: str, *arguments: str) -> list[str]:
    """A module of the harness as a command."""
    return [sys.executable, "-m", f"harness.{module}", *arguments]


def start_mock_engines(processes: Processes, count: int) -> list[int]:
    """One mock process that listens as `count` engines; returns their ports."""
    return _start_mock(processes, "mock-engine", count)


def _start_mock(processes: Processes, name: str, count: int, *options: str) -> list[int]:
    ports = free_ports(count)
    command = harness_command("mock_engine", "--ports", ",".join(map(str, ports)), *options)
    processes.start(name, command, core=HARNESS_CORE, env=harness_env())
    for port in ports:
        processes.await_http(name, port, "/health")
    return ports


def direct(engines: Sequence[int]) -> Running:
    """The mock engine asked without a front end."""
    return Running("direct", engines[0], mock_answers.MODEL, None, pace_port=engines[0])


def _start_bare_relay(processes: Processes, engines: Sequence[int]) -> Running:
    (port,) = free_ports(1)
    command = harness_command("bare_relay", "--port", str(port), "--engines", ",".join(map(str, engines)))
    pid = processes.start("bare-relay", command, core=FRONT_END_CORE, env=harness_env())
    processes.await_http("bare-relay", port, "/health")
    return Running("bare relay", port, mock_answers.MODEL, pid)


def _pointsman(policy: str) -> Subject:
    name = f"pointsman {policy}"

    def start(processes: Processes, engines: Sequence[int]) -> Running:
        return _serve(processes, name, policy, engines)

    return Subject(name, _pointsman_version, start)


def _serve(processes: Processes, name: str, policy: str, engines: Sequence[int]) -> Running:
    port, admin_port = free_ports(2)
    command = [sys.executable, "-m", "pointsman.app.cli.main", "serve"]
    for engine in engines:
        command += ["--engine", f"http://127.0.0.1:{engine}"]
    command += ["--port", str(port), "--admin-port", str(admin_port), "--policy", policy]
    label = re.sub(r"[^a-z_]+", "-", name)
    pid = processes.start(label, command, core=FRONT_END_CORE)
    processes.await_http(label, port, "/v1/models", contains=mock_answers.MODEL)
    return Running(name, port, mock_answers.MODEL, pid, admin_port=admin_port, pace_port=engines[0])


def _pointsman_exact() -> Subject:
    """Exact: engines of its own that send KV events, so that the other front ends pay for none of it."""

    def start(processes: Processes, engines: Sequence[int]) -> Running:
        beginnings = msgspec.json.encode(HELD_AT_START).decode()
        options = ("--tokenizer", str(TOKENIZER), "--beginnings", beginnings)
        ports = _start_mock(processes, "mock-engine-kv", len(engines), *options)
        running = _serve(processes, EXACT_SUBJECT, "auto", ports)
        kv_status.await_exact(running.admin_port, len(engines))
        return running

    return Subject(EXACT_SUBJECT, lambda: _pointsman_version() if TOKENIZER.is_dir() else None, start)


def _pointsman_version() -> str | None:
    command = [sys.executable, "-m", "pointsman.app.cli.main", "version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip().rpartition(" ")[2] or None if answer.returncode == 0 else None


def _rust_router(package: str, module: str, policy: str) -> Subject:
    name = f"{package} {policy}"

    def start(processes: Processes, engines: Sequence[int]) -> Running:
        port, metrics_port = free_ports(2)
        command = [str(PEERS / "bin/python"), "-m", module, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker-urls", *(f"http://127.0.0.1:{engine}" for engine in engines), "--policy", policy]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        command += ["--max-concurrent-requests", _MAX_STREAMS]
        command += ["--log-level", "warning" if package == "vllm-router" else "warn"]
        label = name.replace(" ", "-")
        pid = processes.start(label, command, core=FRONT_END_CORE)
        processes.await_http(label, port, "/v1/models", contains=mock_answers.MODEL)
        return Running(name, port, mock_answers.MODEL, pid)

    return Subject(name, lambda: installed_version(PEERS, package), start)


def _dynamo(router_mode: str) -> Subject:
    name = f"dynamo {router_mode}"
    label = name.replace(" ", "-")

    def start(processes: Processes, engines: Sequence[int]) -> Running:
        (port,) = free_ports(1)
        python = str(DYNAMO / "bin/python")
        env = _dynamo_env(processes.directory / f"{label}-discovery")
        front_end = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        pid = processes.start(label, [*front_end, "--router-mode", router_mode], core=FRONT_END_CORE, env=env)
        mocker = [python, "-m", "dynamo.mocker", "--model-path", str(DYNAMO / "model"), "--model-name", "smollm2"]
        mocker += ["--num-workers", str(len(engines)), "--block-size", "64", "--speedup-ratio", "1000"]
        processes.start(f"{label}-mocker", mocker, core=HARNESS_CORE, env=env)
        processes.await_http(label, port, "/v1/models", contains="smollm2", timeout_s=90)
        return Running(name, port, "smollm2", pid, own_engine=True)

    return Subject(name, lambda: installed_version(DYNAMO, "ai-dynamo"), start)


def _dynamo_env(discovery: Path) -> dict[str, str]:
    """One process group on this machine: discovery through files, TCP and ZMQ on the loopback address."""
    return {
        "HF_HUB_OFFLINE": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(discovery),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_LOG": "warn",
    }


def installed_version(venv: Path, package: str) -> str | None:
    """Version of a package in an environment of the peers; None where it is not there."""
    python = venv / "bin/python"
    if not os.access(python, os.X_OK):
        return None
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


ALL: tuple[Subject, ...] = (
    _pointsman("round_robin"),
    _pointsman("prefix"),
    _pointsman_exact(),
    _rust_router("vllm-router", "vllm_router.launch_router", "round_robin"),
    _rust_router("vllm-router", "vllm_router.launch_router", "cache_aware"),
    _rust_router("sglang-router", "sglang_router.launch_router", "round_robin"),
    _rust_router("sglang-router", "sglang_router.launch_router", "cache_aware"),
    _dynamo("round-robin"),
    _dynamo("kv"),
    Subject("bare relay", lambda: "-", _start_bare_relay),
)


def installed(names: Sequence[str] | None = None) -> dict[str, tuple[Subject, str]]:
    """Subjects that can run here with their versions; a line says which can't. `names` limits the choice."""
    if names:
        unknown = set(names) - {subject.name for subject in ALL}
        if unknown:
            known = ", ".join(subject.name for subject in ALL)
            raise BenchmarkError(f"unknown subject {', '.join(sorted(unknown))}; known are: {known}")
    found: dict[str, tuple[Subject, str]] = {}
    for subject in ALL:
        if names and subject.name not in names:
            continue
        version = subject.version()
        if version is None:
            print(f"skipped: {subject.name} is not installed (benchmarks/install_peers.sh)", flush=True)
        else:
            found[subject.name] = (subject, version)
    return found
