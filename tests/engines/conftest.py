"""Real engines, started once for all tests here. `scripts/test-engines` says where they are installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import aiohttp
import pytest

from pointsman.edge.engines.http import EngineHttp
from support.free_ports import free_port

START_LIMIT_S = 600.0
STOP_LIMIT_S = 20.0
KEY = "key-of-the-engine"
GENTLE_WAITS = Path(__file__).parent / "setup" / "gentle_waits"
"""On the path of engines: none of them spins on the cores that all share."""


def _setting(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set; scripts/test-engines installs real engines and sets it")
    return Path(value)


@dataclass(frozen=True)
class Launch:
    """How a process is started."""

    command: Sequence[str]
    log: Path
    env: Mapping[str, str]

    def start(self) -> subprocess.Popen[bytes]:
        """In a group of its own, so that its children can be stopped with it. The log goes on where it ended."""
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                start_new_session=True,
            )


@dataclass
class Server:
    """A process of ours that listens on loopback."""

    name: str
    launch: Launch
    process: subprocess.Popen[bytes]
    port: int
    key: str | None = None
    admin_url: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.launch.log

    def wait_ready(self, path: str) -> None:
        """Returns when GET on the path gives 200; fails with the end of the log where it never does."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._answers(path):
                return
            time.sleep(0.2)
        end = self.log.read_text(errors="replace")[-3000:]
        pytest.fail(f"{self.name} did not start (exit status {self.process.poll()}); its log ends:\n{end}")

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Ends the process and the ones that it started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_LIMIT_S)

    def kill(self) -> None:
        """Ends it and its children without warning, and waits until nobody listens any more."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_LIMIT_S)
        deadline = time.monotonic() + STOP_LIMIT_S
        while self._listens():
            assert time.monotonic() < deadline, f"{self.name} still listens"
            time.sleep(0.02)

    def empty_cache(self) -> None:
        """Of a vLLM: nothing is left of what earlier tests asked. It refuses that while a request has blocks."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.url + "/reset_prefix_cache", b"", headers, method="POST")
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            with urllib.request.urlopen(request, timeout=START_LIMIT_S) as answer:
                if json.load(answer)["success"]:
                    return
            assert time.monotonic() < deadline, f"{self.name} has requests that do not end"
            time.sleep(0.05)

    def start_again(self) -> None:
        """After `kill`: the same command, so it listens at the same port."""
        self.process = self.launch.start()


def start(name: str, command: Sequence[str], port: int, log: Path, env: Mapping[str, str]) -> Server:
    """Starts a process in a group of its own, so that `stop` reaches its children too."""
    launch = Launch(command, log, {"PYTHONPATH": str(GENTLE_WAITS), **env})
    return Server(name, launch, launch.start(), port)


@pytest.fixture(scope="session", name="start_server")
def start_server_fixture() -> Callable[..., Server]:
    return start


@pytest.fixture(scope="session", name="free_port")
def free_port_fixture() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def engine_python() -> str:
    return str(_setting("POINTSMAN_ENGINES_PYTHON"))


@pytest.fixture(scope="session")
def model_folder() -> str:
    return str(_setting("POINTSMAN_ENGINES_MODEL"))


@pytest.fixture(scope="session")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def processes(engine_python: str, model_folder: str, log_folder: Path) -> Iterator[dict[str, Server]]:
    """Both engines, started side by side because each takes half a minute, one core each."""
    started: dict[str, Server] = {}
    cores = sorted(os.sched_getaffinity(0))
    try:
        started["vllm"] = _start_vllm(engine_python, model_folder, log_folder, cores[0])
        started["sglang"] = _start_sglang(engine_python, model_folder, log_folder)
        yield started
    finally:
        for server in started.values():
            server.stop()


@pytest.fixture(scope="session")
def vllm(processes: dict[str, Server]) -> Server:
    """vLLM with a key, cached tokens reported, KV events on; 300 blocks of 32 tokens."""
    processes["vllm"].wait_ready("/health")
    return processes["vllm"]


@pytest.fixture(scope="session")
def sglang(processes: dict[str, Server]) -> Server:
    """SGLang without a key, cached tokens not reported, KV events off; 512 pages of 16 tokens."""
    processes["sglang"].wait_ready("/health")
    return processes["sglang"]


@pytest.fixture(params=["vllm", "sglang"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


@pytest.fixture
def http(server: Server, session: aiohttp.ClientSession) -> EngineHttp:
    return EngineHttp(session, server.url, api_key=server.key, timeout_s=30.0)


def _start_vllm(
    python: str,
    model: str,
    logs: Path,
    core: int,
    *,
    name: str = "vLLM",
    key: str | None = KEY,
    options: Sequence[str] = (),
    more_env: Mapping[str, str] = MappingProxyType({}),
) -> Server:
    """It publishes KV events at loopback ports of its own choice, which it tells at /kv_event_sources.

    It computes in float32: what else is in a batch, or cached, rounds bfloat16 so that a greedy answer may be another.
    """
    port = free_port()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:0",
        "replay_endpoint": "tcp://*:0",
    }
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), *(("--api-key", key) if key else ())),
        *("--block-size", "32", "--num-gpu-blocks-override", "300", "--max-model-len", "4096", "--enforce-eager"),
        *("--dtype", "float32", "--enable-prompt-tokens-details"),
        *("--kv-events-config", json.dumps(events), *options),
    ]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_SERVER_DEV_MODE": "1",
        # A server that gets little time closes a kept connection long after a request was sent on it, unread.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
        **more_env,
    }
    server = start(name, command, port, logs / f"{name.replace(' ', '-').lower()}.log", env)
    server.key = key
    return server


def _start_sglang(python: str, model: str, logs: Path, *, name: str = "SGLang", options: Sequence[str] = ()) -> Server:
    port = free_port()
    command = [
        *(python, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
        *("--page-size", "16", "--max-total-tokens", "8192", "--context-length", "4096"),
        # It would poll for work with all the time of a core.
        *("--sleep-on-idle", *options),
    ]
    # As long as vLLM's, for the same reason.
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_TIMEOUT_KEEP_ALIVE": "600"}
    return start(name, command, port, logs / f"{name.replace(' ', '-').lower()}.log", env)


def _sglang_events() -> list[str]:
    events = {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{free_port()}",
        "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
        "bind": True,
    }
    return ["--enable-cache-report", "--kv-events-config", json.dumps(events)]


@pytest.fixture(scope="session")
def second_vllm(engine_python: str, model_folder: str, log_folder: Path) -> Iterator[Server]:
    """Like `vllm`, without a key. It may not have started yet."""
    cores = sorted(os.sched_getaffinity(0))
    server = _start_vllm(engine_python, model_folder, log_folder, cores[-1], name="vLLM two", key=None)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def vllms(vllm: Server, second_vllm: Server) -> dict[str, Server]:
    """Two of them."""
    second_vllm.wait_ready("/health")
    return {"one": vllm, "two": second_vllm}


@pytest.fixture(scope="module")
def apart(engine_python: str, model_folder: str, log_folder: Path) -> Iterator[dict[str, Server]]:
    """Two vLLM that pass KV on by NixlConnector, `p` and `d`. What nobody fetches they keep for ten minutes."""
    cores = sorted(os.sched_getaffinity(0))
    connector: dict[str, object] = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    connector["kv_connector_extra_config"] = {"kv_lease_duration": 600}
    options = ["--kv-transfer-config", json.dumps(connector)]
    started: dict[str, Server] = {}
    try:
        for name, core in (("p", cores[0]), ("d", cores[-1])):
            channel = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            started[name] = _start_vllm(
                engine_python,
                model_folder,
                log_folder,
                core,
                name=f"vLLM {name}",
                key=KEY,
                options=options,
                more_env=channel,
            )
        for server in started.values():
            server.wait_ready("/health")
        yield started
    finally:
        for server in started.values():
            server.stop()


@pytest.fixture(scope="module")
def exact_vllm(engine_python: str, model_folder: str, log_folder: Path) -> Iterator[Server]:
    """One without a key."""
    core = min(os.sched_getaffinity(0))
    server = _start_vllm(engine_python, model_folder, log_folder, core, name="vLLM exact", key=None)
    try:
        server.wait_ready("/health")
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def second_sglang(engine_python: str, model_folder: str, log_folder: Path) -> Iterator[Server]:
    """One that sends KV events and reports cached tokens. It may not have started yet."""
    server = _start_sglang(engine_python, model_folder, log_folder, name="SGLang with events", options=_sglang_events())
    try:
        yield server
    finally:
        server.stop()
