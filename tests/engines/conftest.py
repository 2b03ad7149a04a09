"""Real engines, started once for all tests here. `scripts/test-engines` says where they are installed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from pointsman.edge.engines.http import EngineHttp

START_LIMIT_S = 240.0
STOP_LIMIT_S = 20.0
KEY = "key-of-the-engine"


def _setting(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set; scripts/test-engines installs real engines and sets it")
    return Path(value)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    """A process of ours that listens on loopback."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    key: str | None = None
    admin_url: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

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

    def stop(self) -> None:
        """Ends the process and the ones that it started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_LIMIT_S)


def start(name: str, command: Sequence[str], port: int, log: Path, env: Mapping[str, str]) -> Server:
    """Starts a process in a group of its own, so that `stop` reaches its children too."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
    return Server(name, process, port, log)


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


def _start_vllm(python: str, model: str, logs: Path, core: int) -> Server:
    port, events_port = free_port(), free_port()
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--api-key", KEY),
        *("--block-size", "32", "--num-gpu-blocks-override", "300", "--max-model-len", "4096", "--enforce-eager"),
        "--enable-prompt-tokens-details",
        "--kv-events-config",
        f'{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:{events_port}"}}',
    ]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
    }
    server = start("vLLM", command, port, logs / "vllm.log", env)
    server.key = KEY
    return server


def _start_sglang(python: str, model: str, logs: Path) -> Server:
    port = free_port()
    command = [
        *(python, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
        *("--page-size", "16", "--max-total-tokens", "8192", "--context-length", "4096"),
    ]
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return start("SGLang", command, port, logs / "sglang.log", env)
