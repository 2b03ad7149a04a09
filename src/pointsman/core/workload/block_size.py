"""The same trace with blocks of another size."""

from __future__ import annotations

from dataclasses import replace

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace, TraceRequest


def with_block_tokens(trace: Trace, block_tokens: int) -> Trace:
    """Blocks are split or put together; one size must divide the other. Raises TraceError otherwise.

    Split, a block's parts are new ids: what two prompts share ends where it did, at multiples of the old size, because
    nobody knows more. Put together, what they share beyond the last whole new block is lost.
    """
    old = trace.block_tokens
    if not old or old == block_tokens:
        return trace
    if block_tokens < 1 or (old % block_tokens and block_tokens % old):
        raise TraceError(
            f"{trace.name} has blocks of {old} tokens; {block_tokens} neither divides that nor is a multiple of it"
        )
    change = _split if block_tokens < old else _joined
    requests = tuple(change(request, old, block_tokens) for request in trace.requests)
    known = any(request.block_ids for request in requests)
    return replace(trace, requests=requests, block_tokens=block_tokens if known else 0)


def _split(request: TraceRequest, old: int, new: int) -> TraceRequest:
    parts = old // new
    blocks = -(-request.prompt_tokens // new)
    ids = tuple(block * parts + part for block in request.block_ids for part in range(parts))[:blocks]
    answer = [block * parts + part for block in request.answer_block_ids for part in range(parts)]
    # The old block in which the prompt ends is the first of the answer's; the prompt fills some of its parts.
    filled = request.prompt_tokens // new - request.prompt_tokens // old * parts
    end = (request.prompt_tokens + request.output_tokens) // new - request.prompt_tokens // new
    return replace(request, block_ids=ids, answer_block_ids=tuple(answer[filled:][:end]))


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
