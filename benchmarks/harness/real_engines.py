"""Two real vLLM engines on the CPU with SmolLM2-135M-Instruct, one core each, that send KV events."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.processes import BenchmarkError, Processes, free_ports
from harness.subjects import ROOT, harness_env

ENGINES = ROOT / ".venv-engines"
MODEL = "smollm2"
BLOCK_TOKENS = 32
_BLOCKS = 1000
_START_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class RealEngine:
    """One that answers."""

    name: str
    port: int
    events: str
    """ZMQ endpoint of its KV events."""
    replay: str

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"


def model_folder(gguf: Path) -> Path:
    """The model as vLLM loads it, made from the GGUF file once. Raises BenchmarkError where engines are missing."""
    python = ENGINES / "bin/python"
    if not os.access(python, os.X_OK):
        raise BenchmarkError("real engines are not installed here: scripts/test-engines installs them")
    folder = ENGINES / "models" / MODEL
    if not (folder / ".made").exists():
        print(f"making {folder.name} from {gguf.name}", flush=True)
        command = [str(python), "-m", "harness.gguf_model", str(gguf), str(folder)]
        made = subprocess.run(command, env={**os.environ, **harness_env()}, capture_output=True, text=True, check=False)
        if made.returncode:
            raise BenchmarkError(f"{gguf} could not be turned into a model for vLLM:\n{made.stderr[-800:]}")
        (folder / ".made").touch()
    return folder


def start_engines(group: Processes, model: Path) -> list[RealEngine]:
    """Both, side by side; each chooses loopback ports for its events and tells them."""
    ports = free_ports(2)
    cores = sorted(os.sched_getaffinity(0))
    names = [f"engine-{number}" for number in range(len(ports))]
    for number, (name, port) in enumerate(zip(names, ports, strict=True)):
        group.start(name, _command(model, port), env=_env(cores[number % len(cores)]))
    engines = []
    for name, port in zip(names, ports, strict=True):
        group.await_http(name, port, "/health", timeout_s=_START_LIMIT_S)
        told = _event_source(port)
        engines.append(RealEngine(name, port, told["endpoint"], told["replay_endpoint"]))
    return engines


def _command(model: Path, port: int) -> list[str]:
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:0",
        "replay_endpoint": "tcp://*:0",
    }
    command = [str(ENGINES / "bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(_BLOCKS), "--max-model-len", "4096"]
    return [*command, "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)]


def _env(core: int) -> Mapping[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
    }


def _event_source(port: int) -> dict[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/kv_event_sources", timeout=10) as answer:
        sources: dict[str, dict[str, str]] = json.load(answer)
    return sources["0"]
