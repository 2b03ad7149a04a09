"""One run of made traffic on a fleet whose workers can pass KV on, under one rule of when they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from peers_policies.thresholds import IslBounding, UncachedTokens
from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.worker import Role
from pointsman.core.policies.cost.cost import Cost
from pointsman.core.policies.policy import Policy
from pointsman.core.timing.links import link
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.generators.agents import Agents, agents
from pointsman.core.workload.generators.arrivals import Poisson
from pointsman.core.workload.generators.chat import Chat, chat
from pointsman.core.workload.generators.distributions import Fixed, Lognormal
from pointsman.core.workload.generators.rag import Rag, rag
from pointsman.core.workload.generators.shared_prefix import Order, SharedPrefix, shared_prefix
from pointsman.core.workload.trace import Trace

BLOCK_TOKENS = 64
LINKS: Mapping[str, str] = {
    "NDR": "infiniband-ndr:0.1ms",
    "100 GbE": "100gbe:0.2ms",
    "25 GbE": "25gbe:0.2ms",
    "1 GbE": "0.1GB/s:0.5ms",
}
"""Usable speed one way of each worker, and the time to set a transfer up."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When KV moves."""

    mode: TransferMode
    policy: Callable[[], Policy] = Cost
    pulls: bool = True


RULES: Mapping[str, Rule] = {
    "never": Rule(TransferMode.OFF),
    "always": Rule(TransferMode.ALWAYS, pulls=False),
    "auto": Rule(TransferMode.AUTO),
    "auto, no pulls": Rule(TransferMode.AUTO, pulls=False),
    "16 uncached": Rule(TransferMode.AUTO, lambda: UncachedTokens(16), pulls=False),
    "256 uncached": Rule(TransferMode.AUTO, lambda: UncachedTokens(256), pulls=False),
    "2,048 uncached": Rule(TransferMode.AUTO, lambda: UncachedTokens(2_048), pulls=False),
    "2,048 and .7": Rule(TransferMode.AUTO, IslBounding, pulls=False),
}
THRESHOLDS = ("16 uncached", "256 uncached", "2,048 uncached", "2,048 and .7")


def _chat(per_s: float, rng: np.random.Generator, requests: int) -> Trace:
    settings = Chat(
        Poisson(per_s / 4),
        think_ms=Lognormal(8_000, 0.9, 500, 60_000),
        sessions=requests // 3,
        block_tokens=BLOCK_TOKENS,
    )
    return chat(settings, rng)


def _code(per_s: float, rng: np.random.Generator, requests: int) -> Trace:
    """Long answers to short questions over one of many repositories."""
    settings = SharedPrefix(
        Poisson(per_s),
        groups=60,
        users=40,
        system_tokens=Lognormal(6_000, 0.5, 1_000, 30_000),
        question_tokens=Lognormal(400, 0.8, 20, 6_000),
        output_tokens=Lognormal(700, 0.7, 50, 4_000),
        order=Order.DRAWN,
        zipf=1.0,
        block_tokens=BLOCK_TOKENS,
        requests=requests,
    )
    return shared_prefix(settings, rng)


def _documents(per_s: float, rng: np.random.Generator, requests: int) -> Trace:
    """Questions over long documents, of which few are asked about again."""
    return _about(Lognormal(16_000, 0.6, 2_000, 60_000), Lognormal(250, 0.8, 10, 2_000), per_s, rng, requests)


def _short_documents(per_s: float, rng: np.random.Generator, requests: int) -> Trace:
    return _about(Lognormal(5_000, 0.5, 1_000, 20_000), Lognormal(150, 0.8, 10, 1_000), per_s, rng, requests)


def _about(
    document_tokens: Lognormal, output_tokens: Lognormal, per_s: float, rng: np.random.Generator, requests: int
) -> Trace:
    settings = Rag(
        Poisson(per_s),
        documents=400,
        documents_a_request=1,
        document_tokens=document_tokens,
        output_tokens=output_tokens,
        block_tokens=BLOCK_TOKENS,
        requests=requests,
    )
    return rag(settings, rng)


def _agents(per_s: float, rng: np.random.Generator, requests: int) -> Trace:
    settings = Agents(
        Poisson(per_s / 25),
        system_tokens=Fixed(12_000),
        tasks=Fixed(2),
        most_tokens=120_000,
        tool_ms=Lognormal(6_000, 1.0, 500, 60_000),
        think_ms=Lognormal(20_000, 1.0, 2_000, 120_000),
        sessions=max(4, requests // 25),
        block_tokens=BLOCK_TOKENS,
    )
    return agents(settings, rng)


@dataclass(frozen=True, slots=True)
class Workload:
    """Made traffic, and how many requests a second are little and much for the fleet."""

    make: Callable[[float, np.random.Generator, int], Trace]
    light: float
    medium: float
    heavy: float

    def per_s(self, load: str) -> float:
        """By the name of a load."""
        return float(getattr(self, load))


WORKLOADS: Mapping[str, Workload] = {
    "chat": Workload(_chat, 15, 50, 90),
    "code generation": Workload(_code, 4, 12, 18),
    "long documents": Workload(_documents, 2, 5, 7),
    "agents": Workload(_agents, 3, 10, 18),
}
MIXED_WORKLOADS: Mapping[str, Workload] = {
    "chat, 8B": Workload(_chat, 8, 24, 48),
    "code generation, 8B": Workload(_code, 1, 2, 4),
    "documents of 5,000 tokens, 8B": Workload(_short_documents, 2, 5, 10),
}
"""That the fleet of two kinds of GPUs gets."""
LOADS = ("light", "medium", "heavy")


def _both() -> tuple[WorkerGroup, ...]:
    return (WorkerGroup(profile("h100/llama-70b-tp4"), 4),)


def _apart() -> tuple[WorkerGroup, ...]:
    engine = profile("h100/llama-70b-tp4")
    return (WorkerGroup(engine, 2, Role.PREFILL), WorkerGroup(engine, 2, Role.DECODE))


def _two_kinds(prefill: Role, decode: Role) -> tuple[WorkerGroup, ...]:
    return (WorkerGroup(profile("a100/llama-8b"), 2, prefill), WorkerGroup(profile("rtx4090/llama-8b"), 4, decode))


FLEETS: Mapping[str, Callable[[], tuple[WorkerGroup, ...]]] = {"4 for both": _both, "2:2": _apart}
"""Llama-70B on four H100 a worker."""
MIXED: Mapping[str, tuple[str, ...]] = {"undivided": ("never", "auto"), "A100 prefill, 4090 decode": ("always", "auto")}
"""Fleets of two kinds of GPUs, and the rules that are tried on each."""
_OF_TWO_KINDS: Mapping[str, Callable[[], tuple[WorkerGroup, ...]]] = {
    "undivided": lambda: _two_kinds(Role.BOTH, Role.BOTH),
    "A100 prefill, 4090 decode": lambda: _two_kinds(Role.PREFILL, Role.DECODE),
}


class ApartRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one simulation is given."""

    workload: str
    load: str
    rule: str
    link: str = "100 GbE"
    fleet: str = "4 for both"
    seed: int = 0
    requests: int = 1_000
    believed_speed: float = 1.0


def carry_out_apart(run: ApartRun) -> dict[str, Any]:
    """Simulate, and sum up."""
    workload, rule = {**WORKLOADS, **MIXED_WORKLOADS}[run.workload], RULES[run.rule]
    rng = np.random.default_rng([run.seed, *run.workload.encode()])
    made = workload.make(workload.per_s(run.load), rng, run.requests)
    trace = replace(made, requests=made.requests[: run.requests])
    setup = Setup(
        {**FLEETS, **_OF_TWO_KINDS}[run.fleet](),
        link=link(LINKS[run.link]),
        kv_transfer=rule.mode,
        pulls=rule.pulls,
        believed_speed=run.believed_speed,
        step_noise=0.03,
    )
    started = time.process_time()
    outcome = simulate(trace, setup, rule.policy(), seed=run.seed)
    done = outcome.done
    ttft_ms = outcome.ttft_ms[done]
    return {
        "ttft_mean_ms": float(ttft_ms.mean()),
        "ttft_p99_ms": float(np.percentile(ttft_ms, 99)),
        "tpot_mean_ms": float(np.nanmean(outcome.tpot_ms[done])),
        "itl_p99_ms": outcome.itl.quantile_ms(0.99),
        "e2e_mean_ms": float(outcome.e2e_ms[done].mean()),
        "apart": float((outcome.prefill_worker >= 0).mean()),
        "pulled": float(((outcome.prefill_worker < 0) & (outcome.moved_tokens > 0)).mean()),
        "failed": int((~done).sum()),
        "busy": float(np.mean([one.busy_ms for one in outcome.workers])) / (outcome.ended_ms - outcome.started_ms),
        "cpu_s": time.process_time() - started,
        "run": msgspec.to_builtins(run),
    }
