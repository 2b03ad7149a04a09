"""KvTranslator: KV events as an engine sends them → events of the ledger for one worker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pointsman.core.ledger.events import BlocksCleared, BlocksRemoved, BlocksStored
from pointsman.core.model.token_keys import GPU, KeySpec, pack_tokens, salt_extra
from pointsman.core.model.worker import WorkerId
from pointsman.edge.wire.kv_events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventBatch,
    TokenKey,
    UnknownEvent,
    UnreadBatch,
)

TAKEN_KINDS: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Groups of layers that hold the whole prefix. Others (sliding window, Mamba, …) hold only a part of it."""
MOST_BLOCKS: Final = 512
"""An event of more blocks is told as several, so that none of them takes long."""
_UNNAMED_MEDIUM = "unnamed"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was told and could not be used. What was told otherwise is not touched by it."""

    reason: str


Translated = BlocksStored | BlocksRemoved | BlocksCleared | Fault


class KvTranslator:
    """For one worker. It learns from stores which groups are not taken, as removals tell only a group's number."""

    def __init__(self, worker: WorkerId) -> None:
        self._worker = worker
        self._left_out: set[int] = set()

    def reset(self) -> None:
        """Another process publishes now."""
        self._left_out.clear()

    def translate(self, batch: EventBatch, at_ms: float) -> list[Translated]:
        """What a batch means, in its order; blocks of other places and groups are left out."""
        return [one for one in self.steps(batch, at_ms) if one is not None]

    def steps(self, batch: EventBatch | UnreadBatch, at_ms: float) -> Iterator[Translated | None]:
        """The same bit by bit, so that whoever asks can turn to other things after each; None: nothing to tell.

        Raises `KvEventError` where the batch can't be read.
        """
        gone: list[BlockHash] = []
        medium = GPU
        for event in batch.events:
            if isinstance(event, BlockRemoved):
                # Engines tell of each block by itself, and often of many in a row.
                if gone and _medium(event.medium) != medium:
                    yield self._removed(gone, medium, at_ms)
                    gone = []
                medium = _medium(event.medium)
                gone += event.block_hashes if self._is_ours(event) else ()
                while len(gone) >= MOST_BLOCKS:
                    yield self._removed(gone[:MOST_BLOCKS], medium, at_ms)
                    del gone[:MOST_BLOCKS]
                yield None
                continue
            if gone:
                yield self._removed(gone, medium, at_ms)
                gone = []
            yield from self._event(event, at_ms)
        if gone:
            yield self._removed(gone, medium, at_ms)

    def _removed(self, gone: list[BlockHash], medium: str, at_ms: float) -> BlocksRemoved:
        return BlocksRemoved(self._worker, at_ms, tuple(gone), medium)

    def _event(self, event: BlockStored | AllBlocksCleared | UnknownEvent, at_ms: float) -> Iterator[Translated | None]:
        if isinstance(event, BlockStored):
            return self._stored(event, at_ms)
        one = BlocksCleared(self._worker, at_ms) if isinstance(event, AllBlocksCleared) else _unknown(event)
        return iter((one,))

    def _stored(self, event: BlockStored, at_ms: float) -> Iterator[Translated | None]:
        if not self._takes_group(event) or event.locality == "REMOTE" or not event.block_hashes:
            yield None
            return
        medium = _medium(event.medium)
        if not event.token_ids and medium != GPU:
            # Offload tiers may announce a hash alone. Nothing can be looked up by it, so it is as if it were not there.
            yield None
            return
        try:
            _check_lengths(event)
            for first in range(0, len(event.block_hashes), MOST_BLOCKS):
                yield self._piece(event, first, medium, at_ms)
        except ValueError as error:
            yield Fault(f"blocks that it stored cannot be used: {error}")

    def _piece(self, event: BlockStored, first: int, medium: str, at_ms: float) -> BlocksStored:
        """Blocks of an event from number `first` on. ValueError: they can't be used."""
        hashes = event.block_hashes[first : first + MOST_BLOCKS]
        packed, spec = _tokens(event, first, len(hashes))
        return BlocksStored(
            worker=self._worker,
            at_ms=at_ms,
            hashes=hashes,
            parent=event.block_hashes[first - 1] if first else event.parent_block_hash,
            tokens=packed,
            spec=spec,
            medium=medium,
            lora_name=_adapter(event),
            extras=_extras(event, first, len(hashes)),
        )

    def _takes_group(self, event: BlockStored) -> bool:
        taken = event.kv_cache_spec_kind in TAKEN_KINDS
        if event.group_idx is not None:
            if taken:
                self._left_out.discard(event.group_idx)
            else:
                self._left_out.add(event.group_idx)
        return taken

    def _is_ours(self, event: BlockRemoved) -> bool:
        return event.group_idx not in self._left_out and event.locality != "REMOTE"


def engine_extra(items: Sequence[object]) -> bytes:
    """What keys a block besides tokens, adapter and salt, as the engine has it: multimodal ids, digests of embeddings.

    Never equal to `salt_extra` of anything.
    """
    return b"keys" + msgspec.msgpack.encode(list(items))


def _unknown(event: UnknownEvent) -> Fault:
    return Fault(f"it sends events of the kind {event.tag!r}, which are not known here")


def _medium(name: str | None) -> str:
    """`gpu` only where the engine says so, or says nothing."""
    lower = GPU if name is None else name.lower()
    return lower or _UNNAMED_MEDIUM


def _check_lengths(event: BlockStored) -> None:
    """ValueError: there are not as many tokens, or extra keys, as the blocks need."""
    size, blocks, ids = event.block_size, len(event.block_hashes), event.token_ids
    if size < 1 or len(ids) != size * blocks:
        raise ValueError(f"{len(ids)} tokens for {blocks} blocks of {size}")
    if event.extra_keys is not None and len(event.extra_keys) != blocks:
        raise ValueError(f"{len(event.extra_keys)} extra keys for {blocks} blocks")


def _tokens(event: BlockStored, first: int, count: int) -> tuple[bytes, KeySpec]:
    """Packed tokens of `count` blocks and how they are cut. ValueError: they are not to be used."""
    size = event.block_size
    begin = first * size
    ids = event.token_ids[begin : begin + count * size]
    bigram = isinstance(event.token_ids[0], tuple)
    try:
        if bigram and first:
            _unpaired(event.token_ids[begin - 1 : begin + 1])
        packed = pack_tokens(_unpaired(ids) if bigram else ids)  # type: ignore[arg-type]
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids are not all numbers of 32 bits ({error})") from None
    return packed, KeySpec(size, bigram)


def _unpaired(pairs: Sequence[TokenKey]) -> list[int]:
    """Tokens of a row of overlapping pairs (a, b), (b, c), …"""
    firsts: list[int] = []
    seconds: list[int] = []
    for pair in pairs:
        if not isinstance(pair, tuple):
            raise ValueError("token pairs and single tokens are mixed")
        firsts.append(pair[0])
        seconds.append(pair[1])
    if firsts[1:] != seconds[:-1]:
        raise ValueError("neighbouring token pairs do not overlap")
    firsts.append(seconds[-1])
    return firsts


def _adapter(event: BlockStored) -> str | None:
    """Older engines tell only an adapter's number: no request has a name like that, so nothing is found by mistake."""
    if event.lora_name is None and event.lora_id:
        return f"\0adapter {event.lora_id}"
    return event.lora_name


def _extras(event: BlockStored, first: int, count: int) -> Mapping[int, bytes]:
    """What else keys `count` blocks, by their number among these."""
    extras: dict[int, bytes] = {}
    for number, items in enumerate((event.extra_keys or ())[first : first + count]):
        extra = _extra(event, first + number, items) if items else None
        if extra is not None:
            extras[number] = extra
    if event.cache_salt and event.parent_block_hash is None and not first:
        extras[0] = salt_extra(event.cache_salt) + extras.get(0, b"")
    return extras


def _extra(event: BlockStored, number: int, items: Sequence[object]) -> bytes | None:
    """vLLM's order: adapter, then multimodal ids (alone or with their offset), then salt, then digests of embeddings.

    A lone string of a sequence's first block is a salt. In releases that give multimodal ids as bare strings it may be
    such an id, but those take the two for the same themselves.
    """
    names_adapter = items[0] == (event.lora_name if event.lora_name is not None else event.lora_id or None)
    rest = items[1:] if names_adapter else items
    if not rest:
        return None
    only = rest[0] if len(rest) == 1 else None
    if number == 0 and event.parent_block_hash is None and isinstance(only, str):
        return salt_extra(only)
    return engine_extra(rest)
