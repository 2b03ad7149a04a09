"""Worker: one schedulable engine rank."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

from pointsman.core.model.kv_shape import KvShape
from pointsman.core.model.migration import Mechanism

WorkerId = NewType("WorkerId", str)
"""`engine/rank`, for example `gpu-a/0`. Unique among live workers; a worker that left and came back keeps its id."""


class Role(enum.StrEnum):
    """Which stages a worker computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What is known of a worker when it joins; learned from the engine where the engine tells it.

    `None` means unknown, never zero. An engine with data parallelism is several workers, one a rank.
    """

    id: WorkerId
    url: str
    """Base URL without a trailing slash, `http://host:port` or `https://…`."""
    kind: str
    """Adapter that speaks to it: vllm, sglang, trtllm, llamacpp or openai."""
    models: tuple[str, ...]
    """Names that requests may use, LoRA adapters included."""
    rank: int = 0
    role: Role = Role.BOTH
    gpu_count: int = 1
    kv_capacity_tokens: int | None = None
    block_size_tokens: int | None = None
    max_context_tokens: int | None = None
    max_batch_size: int | None = None
    """Sequences that it computes at once."""
    queue_depth_threshold: int | None = None
    """Requests waiting at the engine beyond which it gets no more."""
    weight: float = 1.0
    """How much it should get, beside 1 of an ordinary one."""
    max_in_flight: int | None = None
    """Most requests of ours at once."""
    adapters: tuple[str, ...] = ()
    """Those of `models` that are LoRA adapters."""
    topology_distance: int = 0
    """Levels of the topology at which it is not where the front end is."""
    rank_header: str | None = None
    """Request header that chooses the rank at an engine with several of them."""
    profile: str | None = None
    """Name of the profile whose step times it is thought to have."""
    migration: Mechanism = Mechanism.REPLAY
    """How a stream that it broke off goes on elsewhere."""
    tokenizer: str | None = None
    """Directory or repository of its tokenizer or model, by its own word."""
    stream_usage: bool = True
    """It sends a usage event in a stream when `stream_options.include_usage` asks for one."""
    kv: KvShape | None = None
    """How it passes KV on; None: not at all."""
    place: tuple[str, ...] = ()
    """Where it is, from near to far: node, rack, zone …; an empty name is an unknown one. Empty: only its URL's host is
    known."""


def worker_id(engine: str, rank: int = 0) -> WorkerId:
    """The id of one rank of an engine."""
    return WorkerId(f"{engine}/{rank}")


def engine_of(worker: WorkerId) -> str:
    """The engine that a worker is a rank of."""
    return worker.rpartition("/")[0]
