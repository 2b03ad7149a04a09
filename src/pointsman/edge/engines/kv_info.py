"""`/kv/info`: how an embedded engine passes KV on, by its own word."""

from __future__ import annotations

import msgspec

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.engines.http import EngineHttp, if_there

_KIND = "pointsman-embedded"


class _KvInfo(msgspec.Struct):
    kind: str
    fingerprint: str
    block_size: int
    dtype: str | None = None
    bytes_per_token: int | None = None
    transports: tuple[str, ...] = ()
    holds_parts: bool = False


async def read_kv_info(http: EngineHttp) -> KvShape | None:
    """None for every other engine. Raises EngineCallError if it did not answer."""
    info = await if_there(http.get_json("/kv/info", _KvInfo))
    if info is None or info.kind != _KIND:
        return None
    return KvShape(
        HandShake.BLOCKS,
        block_size_tokens=info.block_size,
        dtype=info.dtype,
        tensor_parallel=1,
        model=info.fingerprint,
        bytes_per_token=info.bytes_per_token,
        transports=info.transports,
        parts=info.holds_parts,
    )
