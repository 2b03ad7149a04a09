"""Caches: what the workers hold of prompts, by their own word where there is one, else by what was sent there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.approx_index import ApproxIndex
from pointsman.core.ledger.groups import ModelGroup
from pointsman.core.ledger.kv_view import CONFIDENT, KvView
from pointsman.core.ledger.prefix_index import PrefixIndex
from pointsman.core.ledger.public_hashes import PublicHashes
from pointsman.core.ledger.reuse import Reuse
from pointsman.core.ledger.runs import extend_runs
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.replica import PromptTold
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import GPU, KeySpec, chain, token_seed
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec

UNKNOWN_KV_CAPACITY_TOKENS = 262_144
"""Assumed for the approximate indexes until the engine tells."""
ON_ITS_WAY_MS = 60_000.0
"""How long what was just sent counts as held before the engine has said so. Its events come much earlier."""
SWEPT_AT_ONCE = 5_000
"""Blocks of workers that are gone that are swept away each second, beside those with every block stored."""
OVER_CAPACITY = 2.0
"""A worker that announced so many times more blocks than fit has lost removals: its view is begun anew."""


class Caches:
    """Three indexes over slots: exact (KV events), on its way (token keys just sent), approximate (text keys sent)."""

    def __init__(self, text_block_bytes: int, prefix_ttl_ms: float, *, index_by_hash: bool = False) -> None:
        self._text_block_bytes = text_block_bytes
        self._text = ApproxIndex(prefix_ttl_ms)
        self._on_its_way = ApproxIndex(ON_ITS_WAY_MS)
        self._exact = PrefixIndex()
        self._public = PublicHashes(self._exact.is_held) if index_by_hash else None
        self._views: dict[int, KvView] = {}
        self._seat: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        """Seats in the token indexes that workers have now; whatever other seats hold is gone."""
        self._trusted = 0
        """Bit mask of the seats whose own word is relied on."""
        self._capacity_tokens: dict[int, int] = {}
        self._reuse_of: dict[str, Reuse] = {}
        """By the first model of a worker: what one model evicts, requests for another one don't need."""
        self._reuse: dict[int, Reuse] = {}

    # ---- membership

    def add_worker(self, slot: int, spec: WorkerSpec, bytes_per_token: float) -> None:
        """Nothing is held yet."""
        size = spec.block_size_tokens
        self._views[slot] = KvView(KeySpec(size) if size else None)
        self._text.add_worker(slot, 1)
        self._take_seat(slot)
        self._reuse[slot] = self._reuse_of.setdefault(spec.models[0] if spec.models else "", Reuse())
        self.resize(slot, spec.kv_capacity_tokens, bytes_per_token)

    def remove_worker(self, slot: int) -> None:
        """The worker is gone."""
        self._text.remove_worker(slot)
        self._leave_seat(slot)
        del self._views[slot]
        del self._capacity_tokens[slot]
        del self._reuse[slot]
        if not self._reuse:
            self._reuse_of.clear()

    def resize(self, slot: int, capacity_tokens: int | None, bytes_per_token: float) -> None:
        """The KV cache holds so many tokens; None = unknown."""
        self._capacity_tokens[slot] = capacity_tokens or 0
        tokens = capacity_tokens or UNKNOWN_KV_CAPACITY_TOKENS
        self._text.resize(slot, int(tokens * bytes_per_token / self._text_block_bytes))
        spec = self._views[slot].spec
        self._on_its_way.resize(self._seat[slot], tokens // spec.block_size_tokens if spec else 1)

    def emptied(self, slot: int) -> None:
        """The process behind the worker is gone, and its cache with it."""
        if slot in self._views:
            self._text.clear(slot)
            self._forget_tokens(slot)

    # ---- requests

    def sent(
        self, slot: int, request: Request, cached_tokens: int, now_ms: float, *, exact: bool, computes: bool = True
    ) -> int:
        """A prompt went to a worker that holds `cached_tokens` of it: all of it counts as held at once.

        `exact`: by the worker's own word. `computes` False: another worker computes it, and gives its KV to this one.
        Returns how many leading text blocks were thought to be there before.
        """
        view = self._views.get(slot)
        if view is None:
            return 0
        if computes:
            self._reuse[slot].asked(cached_tokens, request.prompt_tokens - cached_tokens)
        text = self._text.record(slot, request.blocks.keys, now_ms)
        if not self.is_exact(slot):
            self._reuse_of_text(slot, request.blocks.keys[text:])
        keys, _ = self.not_announced(slot, request, cached_tokens, exact=exact)
        if keys:
            self._on_its_way.record(self._seat[slot], keys, now_ms)
        return text

    def not_announced(
        self, slot: int, request: Request, cached_tokens: int, *, exact: bool
    ) -> tuple[tuple[int, ...], KeySpec | None]:
        """Token keys of a prompt that the worker does not hold by its own word, and how they were cut."""
        view = self._views.get(slot)
        if view is None or view.spec is None:
            return (), None
        keys = self._token_keys(slot, request.token_blocks)
        return keys[cached_tokens // view.spec.block_size_tokens if exact else 0 :], view.spec

    def taken_back(
        self, slot: int, request: Request, text_before: int, others: Sequence[Request]
    ) -> tuple[tuple[int, ...], tuple[int, ...], KeySpec | None]:
        """It never arrived. What `others`, which are still there, have in common with it stays.

        Returns the text keys and the token keys that went, and how the latter were cut.
        """
        if slot not in self._views:
            return (), (), None
        text = request.blocks.keys
        first = max(text_before, max((_shared(text, other.blocks.keys) for other in others), default=0))
        self._text.forget(slot, text, first)
        keys = self._token_keys(slot, request.token_blocks)
        shared = max((_shared(keys, self._token_keys(slot, other.token_blocks)) for other in others), default=0)
        self._on_its_way.forget(self._seat[slot], keys, shared)
        return text[first:], keys[shared:], self._views[slot].spec

    def sent_elsewhere(self, slot: int, prompt: PromptTold, now_ms: float) -> None:
        """Another front end sent a prompt there: what it told of it counts as held, as with our own."""
        view = self._views[slot]
        if prompt.text_keys:
            text = self._text.record(slot, prompt.text_keys, now_ms)
            if not self.is_exact(slot):
                self._reuse_of_text(slot, prompt.text_keys[text:])
        if prompt.token_keys and prompt.spec == view.spec:
            self._on_its_way.record(self._seat[slot], prompt.token_keys, now_ms)

    def taken_back_elsewhere(self, slot: int, prompt: PromptTold, ours: Sequence[Request]) -> None:
        """A prompt of another front end never arrived. What `ours`, which are there, have in common with it stays."""
        text = prompt.text_keys
        first = max((_shared_end(text, other.blocks.keys) for other in ours), default=0)
        self._text.forget(slot, text, first)
        if prompt.spec == self._views[slot].spec:
            keys = prompt.token_keys
            held = (self._token_keys(slot, other.token_blocks) for other in ours)
            self._on_its_way.forget(self._seat[slot], keys, max((_shared_end(keys, one) for one in held), default=0))

    def key_specs(self, group: ModelGroup) -> frozenset[KeySpec]:
        """Ways to cut prompts for this group so that they can be looked up exactly; empty: no worker sends events."""
        views = (self._views[slot] for slot in group.row_of_slot)
        return frozenset(v.spec for v in views if v.spec is not None and v.state is not ev.KvFeedState.OFF)

    # ---- KV events

    def feed_changed(self, slot: int, event: ev.KvFeedChanged) -> None:
        """What the worker's events are worth changed."""
        self._views[slot].changed(event.state, event.reason, event.at_ms)
        if event.state is ev.KvFeedState.OFF:
            self._forget_tokens(slot)
        self._trust_or_not(slot)

    def checked(self, slot: int, fault: str | None) -> None:
        """The worker's events were compared with what was expected."""
        self._views[slot].fault = fault
        self._trust_or_not(slot)

    def stored(self, slot: int, event: ev.BlocksStored) -> None:
        """Blocks are held. Those without a known parent are not believed."""
        view = self._views[slot]
        seat = self._seat[slot]
        if event.medium == GPU:
            self._learn_spec(slot, event)
        if event.keys is not None:
            view.stored_blocks += self._exact.store(seat, event.medium, event.hashes, event.keys)
            self._reuse_of_stored(slot, event.medium, event.keys)
            self._begin_anew_if_overfull(slot, event)
            self._trust_or_not(slot)
            return
        if event.parent is None:
            parent = token_seed(event.spec, event.lora_name)
        else:
            known = self._exact.key_of(seat, event.parent)
            if known is None:
                view.orphaned(len(event.hashes))
                self._trust_or_not(slot)
                return
            parent = known
        keys = chain(event.tokens, event.spec, parent, event.extras)
        hashes = event.hashes[: len(keys)]
        view.stored_blocks += self._exact.store(seat, event.medium, hashes, keys[: len(hashes)])
        self._reuse_of_stored(slot, event.medium, keys)
        if self._public is not None and not event.extras:
            parent_key = None if event.parent is None else parent
            self._public.store(parent_key, keys, event.tokens, event.spec, event.lora_name)
            self._public.clean(len(self._exact))
        self._begin_anew_if_overfull(slot, event)
        self._trust_or_not(slot)

    def removed(self, slot: int, event: ev.BlocksRemoved) -> None:
        """Blocks are not held any more."""
        seat = self._seat[slot]
        keys = self._exact.remove(seat, event.medium, event.hashes)
        if event.medium == GPU:
            self._on_its_way.forget(seat, keys, 0)
        spec = self._views[slot].spec
        if keys and spec is not None:
            blocks = len(self._exact)
            self._reuse[slot].evicted(keys, spec.block_size_tokens, blocks, self._exact.is_held)

    def cleared(self, slot: int) -> None:
        """Nothing is held any more, or nobody knows what."""
        self._forget_tokens(slot)
        self._text.clear(slot)

    # ---- answers

    def write(self, request: Request, group: ModelGroup, table: NDArray[np.int64], bytes_per_token: float) -> None:
        """Fill in what each worker of a view holds of the request's prompt."""
        exact = np.zeros(len(group.workers), dtype=np.int64)
        if request.token_blocks:
            exact[:] = table[Column.EXACT]
            for spec, blocks in request.token_blocks.items():
                self._write_tokens(spec, blocks, request, group, table)
        table[Column.EXACT] = exact
        self._write_text(request, group, table, bytes_per_token)

    def is_exact(self, slot: int) -> bool:
        """True if the worker's own word is used for it."""
        return self.confidence(slot) >= CONFIDENT

    def confidence(self, slot: int) -> float:
        """What the exact view of a worker is worth, 0 to 1."""
        return self._views[slot].confidence(self._capacity_blocks(slot))

    def held_tokens(self, slot: int) -> int:
        """Tokens whose KV it keeps, in use or cached, as far as known; 0 where its capacity is unknown."""
        view = self._views.get(slot)
        if view is None:
            return 0  # it left
        capacity = self._capacity_tokens[slot]
        if view.spec is not None and self.is_exact(slot):
            return min(capacity, self._exact.count(self._seat[slot]) * view.spec.block_size_tokens)
        return round(capacity * self._text.filled(slot))

    def reuse(self, group: ModelGroup) -> Reuse | None:
        """Of what the workers of a group evict; None of no workers."""
        slot = next(iter(group.row_of_slot), None)
        return None if slot is None else self._reuse.get(slot)

    def view(self, slot: int) -> KvView:
        """The state of a worker's exact view; not to be changed."""
        return self._views[slot]

    def text_blocks_held(self, slot: int) -> int:
        """Text blocks thought to be there."""
        return self._text.blocks_held(slot)

    def newest_text(self, slot: int, most: int) -> list[int]:
        """Text blocks thought to be there, the one that was used last first; none where its own word counts."""
        return [] if self.is_exact(slot) else self._text.newest(slot, most)

    def exact_blocks_held(self, slot: int) -> dict[str, int]:
        """Blocks that the worker says it holds, by medium."""
        seat = self._seat[slot]
        return {medium: self._exact.count(seat, medium) for medium in self._exact.media(seat)}

    def tiers(self, keys: Sequence[int]) -> dict[int, dict[str, int]]:
        """Slot → medium → leading blocks that it says it holds in the GPU and the tiers up to that medium together."""
        tiers = self._exact.match_tiers(keys).items()
        return {self._slot_of[seat]: held for seat, held in tiers if seat in self._slot_of}

    def keys_of_hashes(self, spec: KeySpec, hashes: Sequence[int]) -> list[int] | None:
        """Keys of the leading public hashes that are known; None when queries by hash are switched off."""
        return None if self._public is None else self._public.keys(spec, hashes)

    @property
    def text_blocks(self) -> int:
        """Distinct text blocks, over all workers."""
        return len(self._text)

    @property
    def exact_blocks(self) -> int:
        """Distinct token blocks, over all workers and media."""
        return len(self._exact)

    def expire(self, now_ms: float) -> None:
        """Let go of what was sent too long ago, and of some of what is gone."""
        self._text.expire(now_ms)
        self._on_its_way.expire(now_ms)
        self._exact.sweep(SWEPT_AT_ONCE)

    # ---- inside

    def _reuse_of_text(self, slot: int, computed: Sequence[int]) -> None:
        """A prompt of which these blocks are new pushed others out, as far as one knows."""
        reuse, text = self._reuse[slot], self._text
        reuse.computed(computed)
        if text.pushed_out:
            tokens = max(1, round((self._capacity_tokens[slot] or UNKNOWN_KV_CAPACITY_TOKENS) / text.capacity(slot)))
            reuse.evicted(text.pushed_out, tokens, len(text), lambda key: text.mask_of(key) is not None)

    def _reuse_of_stored(self, slot: int, medium: str, keys: Sequence[int]) -> None:
        if medium == GPU:
            self._reuse[slot].computed(keys)
        else:
            self._reuse[slot].moved(keys)

    def _write_tokens(
        self, spec: KeySpec, blocks: BlockKeys, request: Request, group: ModelGroup, table: NDArray[np.int64]
    ) -> None:
        size = spec.block_size_tokens
        longest = max(0, request.prompt_tokens - 1) // size * size  # the last token is always computed
        cached = table[Column.CACHED_TOKENS]
        rows = group.row_of_slot
        for seat, count in self._runs(blocks.keys).items():
            slot = self._slot_of.get(seat)
            if slot in rows and self._views[slot].spec == spec:
                cached[rows[slot]] = min(longest, count * size)
        if self._exact.has_tiers:
            for seat, count in self._exact.match_any_medium(blocks.keys).items():
                slot = self._slot_of.get(seat)
                if slot in rows and self._trusted >> seat & 1 and self._views[slot].spec == spec:
                    row = rows[slot]
                    table[Column.OFFLOADED_TOKENS, row] = max(0, min(longest, count * size) - int(cached[row]))

    def _runs(self, keys: Sequence[int]) -> dict[int, int]:
        """Seat → leading blocks that its worker holds, if its word is relied on, and those on their way to it."""
        trusted = self._trusted
        runs = {seat: blocks for seat, blocks in self._exact.match(keys).items() if trusted >> seat & 1}
        if len(self._on_its_way) and keys:
            extend_runs(runs, keys, self._on_its_way.mask_of, lambda key: (self._exact.mask_of(key) or 0) & trusted)
        return runs

    def _write_text(
        self, request: Request, group: ModelGroup, table: NDArray[np.int64], bytes_per_token: float
    ) -> None:
        """Where the exact view of a worker is not confident, or the prompt was not tokenized."""
        blocks = request.blocks
        matched = self._text.match(blocks.keys)
        if not matched:
            return
        per_block = blocks.block_size / (bytes_per_token if blocks.unit is BlockUnit.BYTES else 1.0)
        longest = max(0, request.prompt_tokens - 1)
        cached, exact = table[Column.CACHED_TOKENS], table[Column.EXACT]
        for slot, count in matched.items():
            row = group.row_of_slot.get(slot)
            if row is not None and not exact[row]:
                cached[row] = max(cached[row], min(longest, int(count * per_block)))

    def _token_keys(self, slot: int, token_blocks: Mapping[KeySpec, BlockKeys]) -> tuple[int, ...]:
        spec = self._views[slot].spec
        blocks = token_blocks.get(spec) if spec is not None else None
        return blocks.keys if blocks is not None else ()

    def _forget_tokens(self, slot: int) -> None:
        self._leave_seat(slot)
        self._take_seat(slot)
        self._views[slot].begin_anew()
        self._trust_or_not(slot)

    def _take_seat(self, slot: int) -> None:
        seat = self._exact.take_seat()
        self._seat[slot] = seat
        self._slot_of[seat] = slot
        self._on_its_way.add_worker(seat, self._capacity_blocks(slot) or UNKNOWN_KV_CAPACITY_TOKENS)

    def _leave_seat(self, slot: int) -> None:
        seat = self._seat.pop(slot)
        del self._slot_of[seat]
        self._trusted &= ~(1 << seat)
        self._on_its_way.remove_worker(seat)
        self._exact.retire(seat)

    def _trust_or_not(self, slot: int) -> None:
        bit = 1 << self._seat[slot]
        self._trusted = self._trusted | bit if self.is_exact(slot) else self._trusted & ~bit

    def _learn_spec(self, slot: int, event: ev.BlocksStored) -> None:
        view = self._views[slot]
        before = view.spec
        view.announced(event.spec, len(event.hashes))
        if view.spec != before:
            self._on_its_way.resize(self._seat[slot], self._capacity_blocks(slot) or UNKNOWN_KV_CAPACITY_TOKENS)

    def _capacity_blocks(self, slot: int) -> int:
        spec = self._views[slot].spec
        return self._capacity_tokens.get(slot, 0) // spec.block_size_tokens if spec else 0

    def _begin_anew_if_overfull(self, slot: int, event: ev.BlocksStored) -> None:
        capacity = self._capacity_blocks(slot) or UNKNOWN_KV_CAPACITY_TOKENS
        if event.medium == GPU and self._exact.count(self._seat[slot]) > OVER_CAPACITY * capacity:
            self._forget_tokens(slot)
            reason = f"it announced more than {OVER_CAPACITY:g} × the {capacity} blocks that fit: removals were lost"
            self._views[slot].changed(ev.KvFeedState.PARTIAL, reason, event.at_ms)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading keys that two prompts have in common. Chained keys: where one pair is equal, all before it are."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def _shared_end(end: Sequence[int], whole: Sequence[int]) -> int:
    """Leading keys of the end of a chain that a whole one has, too."""
    if not end or end[0] not in whole:
        return 0
    return _shared(end, whole[whole.index(end[0]) :])
