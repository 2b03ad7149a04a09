"""A fleet in which prompts are computed at engines of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.migration import Mechanism
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role, WorkerSpec
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from support.virtual.fleet import VirtualFleet, fleet_of
from support.virtual.loop import VirtualLoop

ALWAYS = TransferRules(TransferMode.ALWAYS)
KV = KvShape(HandShake.BLOCKS, block_size_tokens=16, bytes_per_token=64)


@dataclass(frozen=True, slots=True)
class KvSource(WorkerSource):
    """An engine that is known to pass KV on."""

    kv: KvShape = KV
    replays: bool = False
    """It is not known to tell token ids: its streams go on by replay."""

    def spec(self, facts: EngineFacts, rank: int) -> WorkerSpec:
        spec = replace(WorkerSource.spec(self, facts, rank), kv=self.kv)
        return replace(spec, migration=Mechanism.REPLAY) if self.replays else spec


@asynccontextmanager
async def apart(
    loop: VirtualLoop,
    prefills: int = 1,
    decodes: int = 2,
    frontends: int = 1,
    *,
    kv: KvShape = KV,
    rules: TransferRules = ALWAYS,
    replays: bool = False,
    **settings: Any,
) -> AsyncIterator[VirtualFleet]:
    """Engines for prompts come first. All requests are split, unless `rules` say otherwise."""
    async with fleet_of(loop, 0, 0) as fleet:
        for _ in range(prefills + decodes):
            await fleet.add_engine(passes_kv=True)
        roles = [Role.PREFILL] * prefills + [Role.DECODE] * decodes
        sources = tuple(
            KvSource(name=engine.name, url=engine.url, kind="vllm", role=role, kv=kv, replays=replays)
            for engine, role in zip(fleet.engines, roles, strict=True)
        )
        for _ in range(frontends):
            await fleet.add_frontend(alone=frontends == 1, sources=sources, transfer=rules, **settings)
        await fleet.ready()
        yield fleet
