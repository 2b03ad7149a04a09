"""The same trace with blocks of another size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace, TraceRequest


def with_block_tokens(trace: Trace, block_tokens: int) -> Trace:
    """Blocks are split or put together; one size must divide the other. Raises TraceError otherwise.

    Split, a block's parts are new ids: what two prompts share ends where it did, at multiples of the old size, because
    nobody knows more. Only of the block in which a prompt ends and its answer begins more is known: its first parts
    are the prompt's, whoever repeats the answer. Put together, what they share beyond the last whole new block is lost.
    """
    old = trace.block_tokens
    if not old or old == block_tokens:
        return trace
    if block_tokens < 1 or (old % block_tokens and block_tokens % old):
        raise TraceError(
            f"{trace.name} has blocks of {old} tokens; {block_tokens} neither divides that nor is a multiple of it"
        )
    if block_tokens < old:
        same = _Same()
        for request in trace.requests:
            _unite(same, request, old, block_tokens)
        # Each part is one object, however many prompts have it: long traces have hundreds of millions of ids.
        parts_of = functools.cache(functools.partial(_parts, old // block_tokens, same))
        requests = tuple(_split(request, old, block_tokens, parts_of) for request in trace.requests)
    else:
        requests = tuple(_joined(request, old, block_tokens) for request in trace.requests)
    known = any(request.block_ids for request in requests)
    return replace(trace, requests=requests, block_tokens=block_tokens if known else 0)


class _Same:
    """Which parts of old blocks are the same text under several ids."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}

    def of(self, part: int) -> int:
        """The one id that stands for a part."""
        found = part
        while (earlier := self._first.get(found, found)) != found:
            found = earlier
        if found != part:
            self._first[part] = found
        return found

    def unite(self, part: int, other: int) -> None:
        """Both are the same from now on."""
        one, two = self.of(part), self.of(other)
        if one != two:
            self._first[two] = one


def _filled(request: TraceRequest, old: int, new: int) -> int:
    """Parts that the prompt fills of the old block in which it ends."""
    return request.prompt_tokens % old // new


def _unite(same: _Same, request: TraceRequest, old: int, new: int) -> None:
    """The old block in which the prompt ends has one id as the prompt's last and another as the answer's first."""
    ends_in = request.prompt_tokens // old
    if not request.answer_block_ids or len(request.block_ids) <= ends_in:
        return
    parts = old // new
    for part in range(_filled(request, old, new)):
        same.unite(request.block_ids[ends_in] * parts + part, request.answer_block_ids[0] * parts + part)


def _parts(number: int, same: _Same, block: int) -> tuple[int, ...]:
    return tuple(same.of(block * number + part) for part in range(number))


def _split(request: TraceRequest, old: int, new: int, parts_of: Callable[[int], tuple[int, ...]]) -> TraceRequest:
    blocks = -(-request.prompt_tokens // new)
    ids = tuple(islice(chain.from_iterable(map(parts_of, request.block_ids)), blocks))
    start = _filled(request, old, new)
    end = start + (request.prompt_tokens + request.output_tokens) // new - request.prompt_tokens // new
    answer = tuple(islice(chain.from_iterable(map(parts_of, request.answer_block_ids)), start, end))
    return replace(request, block_ids=ids, answer_block_ids=answer)


def _joined(request: TraceRequest, old: int, new: int) -> TraceRequest:
    parts = new // old
    full = request.block_ids[: request.prompt_tokens // old]
    ids = full[parts - 1 :: parts]
    blocks = -(-request.prompt_tokens // new)
    # Ids are chained, so the last old block of a new one stands for it; of one that is not full, the last there is.
    if len(ids) < blocks and len(request.block_ids) == -(-request.prompt_tokens // old):
        ids = (*ids, request.block_ids[-1])
    answer: tuple[int, ...] = ()
    if request.answer_block_ids and len(full) == request.prompt_tokens // old:
        answer = (full + request.answer_block_ids)[parts - 1 :: parts][request.prompt_tokens // new :]
    return replace(request, block_ids=ids, answer_block_ids=answer)
