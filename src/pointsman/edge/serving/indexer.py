"""Queries of the public indexer API (Mooncake RFC 1403, which Dynamo's indexer follows too): who holds what.

`POST /query` takes token ids, `POST /query_by_hash` sequence hashes. The answer names engines, with the tokens that
each holds in the tiers up to a medium, and by rank.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.token_keys import KeySpec, pack_tokens, salt_extra, token_block_keys
from pointsman.core.model.worker import WorkerId

Held = dict[WorkerId, dict[str, int]]
"""Worker → medium → leading tokens held in the tiers up to that one."""


class IndexerQueryError(PointsmanError):
    """A query can't be answered; says what to change."""


class _Scope(msgspec.Struct, kw_only=True):
    model: str
    block_size: int
    lora_name: str | None = None
    tenant_id: str = "default"
    instance_id: str | None = None
    """An engine's name; absent: all of them."""


class TokenQuery(_Scope, kw_only=True):
    """Body of `/query`."""

    token_ids: list[int]
    cache_salt: str | None = None


class HashQuery(_Scope, kw_only=True):
    """Body of `/query_by_hash`; older clients call the hashes `block_hash` or `block_hashes`."""

    seq_hashes: list[int] | None = None
    block_hashes: list[int] | None = None
    block_hash: list[int] | None = None

    @property
    def hashes(self) -> list[int]:
        """The hashes, by whatever name. Raises IndexerQueryError when there are none."""
        for given in (self.seq_hashes, self.block_hashes, self.block_hash):
            if given is not None:
                return given
        raise IndexerQueryError("seq_hashes: expected a list of sequence hashes")


_Query = TypeVar("_Query", TokenQuery, HashQuery)


class Indexer:
    """Answers from the ledger's exact index, for workers whose word is relied on; the others are not in the answer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def query(self, body: bytes) -> dict[str, object]:
        """Answer to `/query`. Raises IndexerQueryError."""
        asked = _decode(body, TokenQuery)
        try:
            packed = pack_tokens(asked.token_ids)
        except OverflowError:
            raise IndexerQueryError("token_ids: expected integers from 0 to 4294967295") from None
        extras = {0: salt_extra(asked.cache_salt)} if asked.cache_salt else {}
        held: Held = {}
        for spec in _specs(asked):
            keys = token_block_keys(packed, spec, asked.lora_name, extras).keys
            held |= self._ledger.held(asked.lora_name or asked.model, spec, keys, believed=True)
        return _answer(asked, held)

    def query_by_hash(self, body: bytes) -> dict[str, object]:
        """Answer to `/query_by_hash`. Raises IndexerQueryError."""
        asked = _decode(body, HashQuery)
        held: Held = {}
        for spec in _specs(asked):
            found = self._ledger.held_by_hash(asked.lora_name or asked.model, spec, asked.hashes)
            if found is None:
                raise IndexerQueryError("queries by hash are switched off; set routing.index_by_hash: true")
            held |= found
        return _answer(asked, held)


def _decode(body: bytes, query: type[_Query]) -> _Query:
    try:
        asked = msgspec.json.decode(body, type=query)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IndexerQueryError(str(error)) from error
    if asked.block_size < 1:
        raise IndexerQueryError(f"block_size: expected tokens a block, at least 1, not {asked.block_size}")
    return asked


def _specs(asked: _Scope) -> tuple[KeySpec, KeySpec]:
    return KeySpec(asked.block_size), KeySpec(asked.block_size, bigram=True)


def _answer(asked: _Scope, held: Held) -> dict[str, object]:
    engines: dict[str, dict[str, dict[str, int]]] = {}
    for worker, tiers in held.items():
        engine, _, rank = worker.rpartition("/")
        if asked.instance_id in (None, engine):
            engines.setdefault(engine, {})[rank] = tiers
    return {asked.tenant_id: {engine: _engine(ranks) for engine, ranks in engines.items()}}


def _engine(ranks: dict[str, dict[str, int]]) -> dict[str, object]:
    """What an engine holds is what its best rank holds."""
    media = dict.fromkeys(("gpu", "cpu", "disk"))
    for tiers in ranks.values():
        media |= dict.fromkeys(tiers)
    best: dict[str, int] = {}
    below = 0
    for medium in media:
        below = max([below, *(tiers.get(medium, 0) for tiers in ranks.values())])
        best[medium.upper()] = below
    by_rank = {rank: max(tiers.values()) for rank, tiers in ranks.items()}
    return {"longest_matched": max(by_rank.values()), **best, "DP": by_rank}
