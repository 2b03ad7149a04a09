"""Prompts: requests of a trace as the ledger and the engines see them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.app.simulate.setup import RouteKey, Setup
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.workload.trace import Trace, TraceRequest

ANY_MODEL = "model"
"""What requests ask for where the trace does not say."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Keys of the blocks of one request: those that the prompt fills, then those that the answer fills."""

    keys: tuple[int, ...]
    answer_keys: tuple[int, ...]


class Prompts:
    """Cuts the blocks of a trace to the engines' size and gives them small keys.

    A trace block cut into several keeps its identity: parts of two blocks are the same exactly where the blocks are.
    Where the answer's blocks are known, the block in which it begins is theirs, so that the next turn finds all of it.
    """

    def __init__(self, trace: Trace, setup: Setup) -> None:
        self._trace_tokens = trace.block_tokens
        self.block_tokens = setup.blocks_for(trace.block_tokens)
        self.spec = KeySpec(self.block_tokens)
        self._kv_events = setup.kv_events
        self._route_key = setup.route_key
        self._slo, self._slo_of_tenants = setup.slo, setup.slo_of_tenants
        self._keys: dict[str, dict[int, int]] = {}
        self._numbers = itertools.count()

    def prompt(self, request: TraceRequest) -> Prompt:
        """Keys of a request's blocks; none where the trace knows none."""
        if not request.block_ids:
            return Prompt((), ())
        full = request.prompt_tokens // self._trace_tokens
        joint: Sequence[int] = request.block_ids
        known_answer = request.answer_block_ids and len(joint) >= full
        if known_answer:
            joint = (*joint[:full], *request.answer_block_ids)
        cut = self._cut(joint, request.model or ANY_MODEL)
        filled = request.prompt_tokens // self.block_tokens
        answered = (request.prompt_tokens + request.output_tokens) // self.block_tokens
        answer = cut[filled:answered] if known_answer else ()
        return Prompt(tuple(cut[:filled]), tuple(answer))

    def request(self, request_id: str, request: TraceRequest, arrival_ms: float, prompt: Prompt) -> Request:
        """As the front end makes it."""
        blocks = BlockKeys(prompt.keys, self.block_tokens, BlockUnit.TOKENS, request.prompt_tokens)
        return Request(
            id=request_id,
            model=request.model or ANY_MODEL,
            arrival_ms=arrival_ms,
            prompt_tokens=request.prompt_tokens,
            blocks=blocks,
            token_blocks={self.spec: blocks} if self._kv_events else {},
            route_key={RouteKey.SESSION: request.session, RouteKey.TENANT: request.tenant}.get(self._route_key)
            if self._route_key
            else None,
            tenant=request.tenant,
            slo=self._slo if request.tenant is None else self._slo_of_tenants.get(request.tenant, self._slo),
        )

    def _cut(self, ids: Sequence[int], model: str) -> list[int]:
        # What one model computed is of no use to another one: neither are its keys the same.
        known = self._keys.setdefault(model, {})
        size, theirs = self.block_tokens, self._trace_tokens
        if size > theirs:
            ids = ids[size // theirs - 1 :: size // theirs]  # chained: the last one stands for all before it
        known.update(zip([block for block in dict.fromkeys(ids) if block not in known], self._numbers, strict=False))
        small = [known[block] for block in ids]
        if size >= theirs:
            return small
        parts = theirs // size
        return [key * parts + part for key in small for part in range(parts)]


def models_of(trace: Trace) -> tuple[str, ...]:
    """Names that requests of a trace ask for."""
    return tuple(dict.fromkeys(request.model or ANY_MODEL for request in trace.requests))
