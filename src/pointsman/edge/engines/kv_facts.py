"""How an engine passes KV on, put together: what it tells, what the operator says, what only a call can tell."""

from __future__ import annotations

import logging
from dataclasses import replace

from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.kv_override import kv_shape
from pointsman.edge.engines.kv_probe import keep_probed_kv, probe_kv, was_probed, with_engine_ids

_log = logging.getLogger("pointsman.engines")


async def with_kv(
    http: EngineHttp, facts: EngineFacts, transport: str | None, before: EngineFacts | None = None
) -> EngineFacts:
    """Facts with `kv` completed.

    Args:
        http: the engine.
        facts: as its adapter found them.
        transport: what the operator says, `cache_transport`.
        before: what was known, if the engine is thought not to have restarted: it is not probed again.
    """
    kv, complaint = kv_shape(facts, transport)
    if complaint is not None and before is None:
        _log.warning("%s: it passes no KV on: %s", http.url, complaint)
    facts = replace(facts, kv=kv)
    if before is None or not was_probed(before):
        facts = await probe_kv(http, facts)
    else:
        facts = keep_probed_kv(facts, before)
    if facts.kv is None:
        return facts
    return replace(facts, kv=await with_engine_ids(http, facts.kv, None if before is None else before.kv))
