"""`kv_transfer_params` in vLLM's shape: read from requests, written into answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pointsman.edge.engines.embedded.transfer_settings import LEAST_LEASE_S
from pointsman.edge.engines.openai_server.errors import bad_request

FIELD = "kv_transfer_params"


class _Asked(msgspec.Struct):
    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_block_ids: list[int | list[int]] | None = None
    remote_num_tokens: int | None = None
    remote_token: str | None = None
    tp_size: int = 1
    block_size: int | None = None
    fingerprint: str | None = None
    lease_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Remote:
    """KV that another engine holds for a request."""

    engine: str
    request: str
    host: str
    port: int
    token: str
    blocks: tuple[int, ...]
    """Where they lie there, from the prompt's beginning."""
    tokens: int
    """That they hold."""
    tp_size: int
    block_size: int
    fingerprint: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """KV that is held here for another engine."""

    request: str
    token: str
    blocks: tuple[int, ...]
    tokens: int


def read_params(params: Mapping[str, object]) -> Remote | bool:
    """What a request asks for: KV from elsewhere; True: to hold its own for others; False: neither.

    Raises ApiError (400) that names the field which is missing or can't be used.
    """
    asked = _typed(params)
    if asked.do_remote_decode and asked.do_remote_prefill:
        raise bad_request(
            "do_remote_decode and do_remote_prefill can't both be true: one leg computes the prompt, the other decodes",
            FIELD,
        )
    if not asked.do_remote_prefill:
        return asked.do_remote_decode
    for name in (
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "remote_block_ids",
        "remote_num_tokens",
        "remote_token",
        "block_size",
        "fingerprint",
    ):
        if getattr(asked, name) is None:
            raise bad_request(
                f"{FIELD}.{name} is missing: pass the object of the prefill leg's answer on unchanged", FIELD
            )
    tokens, size = asked.remote_num_tokens or 0, asked.block_size or 0
    blocks = _flat(asked.remote_block_ids or [])
    if size < 1 or tokens < 0 or len(blocks) != -(-tokens // size):
        raise bad_request(
            f"{FIELD}: {tokens} tokens in blocks of {size} don't fill {len(blocks)} remote_block_ids", FIELD
        )
    if not 0 < (asked.remote_port or 0) < 65536:
        raise bad_request(f"{FIELD}.remote_port: {asked.remote_port} is no port", FIELD)
    return Remote(
        engine=asked.remote_engine_id or "",
        request=asked.remote_request_id or "",
        host=asked.remote_host or "",
        port=asked.remote_port or 0,
        token=asked.remote_token or "",
        blocks=blocks,
        tokens=tokens,
        tp_size=asked.tp_size,
        block_size=size,
        fingerprint=asked.fingerprint or "",
        lease_s=max(LEAST_LEASE_S, asked.lease_s),
    )


def held_params(
    held: Held, engine: str, host: str, port: int, block_size: int, fingerprint: str, lease_s: float
) -> dict[str, object]:
    """What the other side is told."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(held.blocks)],
        "remote_engine_id": engine,
        "remote_request_id": held.request,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": held.tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "block_size": block_size,
        "fingerprint": fingerprint,
        "remote_token": held.token,
        "lease_s": lease_s,
    }


def _typed(params: Mapping[str, object]) -> _Asked:
    try:
        return msgspec.convert(params, _Asked)
    except msgspec.ValidationError as error:
        raise bad_request(f"{FIELD}: {error}", FIELD) from None


def _flat(blocks: list[int | list[int]]) -> tuple[int, ...]:
    """Ids of the one group of layers that there is."""
    if len(blocks) > 1 and any(isinstance(each, list) for each in blocks):
        raise bad_request(f"{FIELD}.remote_block_ids: {len(blocks)} groups of blocks, and this engine has one", FIELD)
    return tuple(number for each in blocks for number in (each if isinstance(each, list) else [each]))
