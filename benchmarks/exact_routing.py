"""Chats over two real vLLM engines: what routing by KV events leaves to compute, beside vllm-router's kv_aware.

usage: scripts/bench exact_routing [--quick] [--model FILE.gguf]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from harness import report, subjects
from harness.chats import Chat, Turn, one_turn, stream_chat
from harness.command import carry_out
from harness.histogram import Percentiles, percentiles_ms, ratio
from harness.noise import NoiseMeter
from harness.processes import BenchmarkError, Processes, free_ports, processes
from harness.real_engines import BLOCK_TOKENS, MODEL, RealEngine, model_folder, start_engines
from pointsman.app.cli.model_places import model_places
from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL

_EXACT_LIMIT_S = 60.0
Start = Callable[[Processes, Sequence[RealEngine]], int]
"""Starts a front end before the engines; gives its port back once it answers."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    rounds: int = 6
    sessions: int = 4
    turns: int = 4
    opening_words: int = 250
    """Words that each session begins with; no two sessions have them in common."""
    growth: float = 0.1
    """Each later user message is that much of the conversation so far."""


def _pointsman(policy: str) -> Start:
    def start(group: Processes, engines: Sequence[RealEngine]) -> int:
        port, admin_port = free_ports(2)
        name = f"pointsman-{policy}"
        command = [sys.executable, "-m", "pointsman.app.cli.main", "serve", "--policy", policy]
        command += ["--port", str(port), "--admin-port", str(admin_port)]
        for engine in engines:
            command += ["--engine", engine.url]
        group.start(name, command)
        group.await_http(name, port, "/ready", contains=f'"workers":{len(engines)}')
        if policy == "auto":
            _await_exact(admin_port, len(engines))
        return port

    return start


def _await_exact(admin_port: int, engines: int) -> None:
    """Wait until every engine's own word is used. Raises BenchmarkError if it never is."""
    deadline = time.monotonic() + _EXACT_LIMIT_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/v1/status", timeout=5) as answer:
            workers = json.load(answer)["workers"]
        if sum(worker["kv"]["confidence"] == 1.0 and bool(worker["kv"]["blocks"]) for worker in workers) == engines:
            return
        if time.monotonic() > deadline:
            raise BenchmarkError(f"KV events are not relied on: {[worker['kv'] for worker in workers]}")
        time.sleep(0.1)


def _vllm_router(policy: str) -> Start:
    def start(group: Processes, engines: Sequence[RealEngine]) -> int:
        port, metrics_port = free_ports(2)
        name = f"vllm-router-{policy}"
        command = [str(subjects.PEERS / "bin/python"), "-m", "vllm_router.launch_router", "--policy", policy]
        command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        command += ["--worker-urls", *(engine.url for engine in engines)]
        for engine in engines:
            command += ["--kv-event-source", f"{engine.url}={engine.events}"]
            command += ["--kv-event-replay-source", f"{engine.url}={engine.replay}"]
        command += ["--kv-event-block-size", str(BLOCK_TOKENS), "--kv-event-model", MODEL]
        group.start(name, command)
        group.await_http(name, port, "/v1/models", contains=MODEL)
        return port

    return start


def arms() -> dict[str, Start]:
    """What can be started here."""
    found = {f"pointsman {policy}": _pointsman(policy) for policy in ("round_robin", "prefix", "auto")}
    if os.access(subjects.PEERS / "bin/vllm-router", os.X_OK):
        found["vllm-router kv_aware"] = _vllm_router("kv_aware")
    else:
        print("skipped: vllm-router is not installed (benchmarks/install_peers.sh)", flush=True)
    return found


def run(options: Options, gguf: Path) -> dict[str, Any]:
    """All front ends stand before the same engines, and their chats take turns."""
    folder = model_folder(gguf)
    with processes() as group:
        print("starting two vLLM engines", flush=True)
        engines = start_engines(group, folder)
        ports = {name: start(group, engines) for name, start in arms().items()}
        turns: dict[str, list[list[Turn]]] = {name: [] for name in ports}
        noise = NoiseMeter(group.pids())
        for number in range(options.rounds):
            for name, told in asyncio.run(_one_round(ports, options, number)).items():
                turns[name].append(told)
            print(f"round {number + 1} of {options.rounds} done", flush=True)
        return {"foreign_cores": noise.foreign_cores(), "turns": turns}


async def _one_round(ports: Mapping[str, int], options: Options, seed: int) -> dict[str, list[Turn]]:
    """One request at a time: within a turn the chats of all front ends come in one random order."""
    rng = random.Random(seed)
    chats = {name: [Chat(i, random.Random(rng.random()), []) for i in range(options.sessions)] for name in ports}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        for url in urls.values():
            await stream_chat(session, url, MODEL, [{"role": "user", "content": "Say hello."}])
        for _ in range(options.turns):
            order = [(name, chat) for name, own in chats.items() for chat in own]
            rng.shuffle(order)
            for name, chat in order:
                chat.ask(options.growth, options.opening_words)
                await one_turn(session, urls[name], MODEL, chat, repeated=False)
    return {name: [turn for chat in own for turn in chat.turns] for name, own in chats.items()}


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over all rounds."""

    requests: int
    prompt_tokens: int
    cached_share: float
    later_cached_share: float
    """Of the turns after the first."""
    ttft_mean_ms: float
    ttft_ms: Percentiles
    later_ttft_mean_ms: float
    later_ttft_ms: Percentiles


def summary(results: Mapping[str, Any]) -> dict[str, ArmSummary]:
    """Each arm, all rounds together."""
    return {name: summarise([turn for one in rounds for turn in one]) for name, rounds in results["turns"].items()}


def summarise(turns: Sequence[Turn]) -> ArmSummary:
    """One arm."""
    later = [turn for turn in turns if turn.turn]
    return ArmSummary(
        requests=len(turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        cached_share=_cached_share(turns),
        later_cached_share=_cached_share(later),
        ttft_mean_ms=statistics.mean(turn.ttft_s for turn in turns) * 1e3,
        ttft_ms=percentiles_ms([turn.ttft_s for turn in turns]),
        later_ttft_mean_ms=statistics.mean(turn.ttft_s for turn in later) * 1e3,
        later_ttft_ms=percentiles_ms([turn.ttft_s for turn in later]),
    )


def _cached_share(turns: Sequence[Turn]) -> float:
    return sum(turn.cached_tokens for turn in turns) / max(sum(turn.prompt_tokens for turn in turns), 1)


def markdown(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    found = summary(results)
    header = [
        "front end",
        "requests",
        "cached tokens",
        "TTFT mean ms",
        "TTFT p50 ms",
        "cached, turns after the first",
        "TTFT mean ms, after the first",
        "TTFT p50 ms, after the first",
    ]
    lines = [_line(name, arm) for name, arm in found.items()]
    base = found["pointsman round_robin"].ttft_mean_ms
    gains = ", ".join(f"{name} {report.number(ratio(arm.ttft_mean_ms, base), 2)}" for name, arm in found.items())
    noise = report.noise_line(results["foreign_cores"])
    return f"{report.table(header, lines)}\n\nTTFT mean ÷ that of pointsman round_robin: {gains}. {noise}"


def _line(name: str, arm: ArmSummary) -> list[str]:
    return [
        name,
        str(arm.requests),
        f"{arm.cached_share:.1%}",
        report.number(arm.ttft_mean_ms),
        report.number(arm.ttft_ms.p50),
        f"{arm.later_cached_share:.1%}",
        report.number(arm.later_ttft_mean_ms),
        report.number(arm.later_ttft_ms.p50),
    ]


async def _default_model() -> Path:
    return (await resolve(DEFAULT_MODEL, model_places(os.environ))).path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of two turns, nothing written")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the model of `pointsman up`")
    arguments = parser.parse_args()
    options = msgspec.structs.replace(Options(), rounds=1, turns=2) if arguments.quick else Options()
    return carry_out(
        "exact_routing",
        options,
        lambda: run(options, arguments.model or asyncio.run(_default_model())),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        refusals=(BenchmarkError, ModelFileError),
    )


if __name__ == "__main__":
    sys.exit(main())
