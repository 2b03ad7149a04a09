"""Mooncake's trace format (kvcache-ai/Mooncake, FAST'25 release): one JSON object a line.

`timestamp` ms from the start, `input_length`, `output_length` tokens, `hash_ids`: one chained id for each block of
512 tokens, a last one that is not full included.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.lines import decode, write_lines
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

_BLOCK_TOKENS = 512
_USUAL_BLOCKS = (512, 16, 32, 64, 128, 256, 1024, 2048)
_SAMPLE = 100


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(_Row)


def read_mooncake(source: Source) -> LoadedTrace:
    """Read it. Blocks have 512 tokens unless the number of ids speaks for another usual size or the options say so."""
    block_tokens = _block_tokens(source)
    builder = TraceBuilder(source.problems, block_tokens=block_tokens, keep_times=True)
    parents: dict[int, int] = {}
    unchained = 0
    for line, row in builder.decoded(source.lines(), _DECODER):
        ids = row.hash_ids
        for parent, block in zip((-1, *ids), ids, strict=False):
            unchained += parents.setdefault(block, parent) != parent
        builder.add(line, TraceRequest(row.timestamp, row.input_length, row.output_length, ids))
    if unchained:
        source.problems.notes.append(
            f"{unchained} block ids come after different blocks at different places: they are not chained, "
            "so what can be reused is overstated"
        )
    return builder.build(source.name, "Mooncake trace format")


def _block_tokens(source: Source) -> int:
    """The size that was given, or the usual one that most of the first rows fit, 512 before the others."""
    given = source.options.block_tokens
    sizes = _USUAL_BLOCKS if given is None else (given,)
    fits: Counter[int] = Counter()
    seen = 0
    for _, raw in source.lines():
        try:
            row = decode(raw, _DECODER)
        except RowError:
            continue
        if not row.hash_ids or row.input_length < 1:
            continue
        fits.update(size for size in sizes if -(-row.input_length // size) == len(row.hash_ids))
        seen += 1
        if seen == _SAMPLE:
            break
    if given is not None:
        if fits[given] < seen / 2:
            source.problems.notes.append(
                f"{seen - fits[given]} of the first {seen} requests with hash_ids do not have one for each "
                f"{given} tokens"
            )
        return given
    if not seen:
        return _BLOCK_TOKENS
    best = max(_USUAL_BLOCKS, key=lambda size: fits[size])
    if not fits[best]:
        raise TraceError(
            f"{source.path}: the number of hash_ids fits no usual block size; say how many tokens a block has with "
            "--block-tokens"
        )
    if best != _BLOCK_TOKENS:
        source.problems.notes.append(f"hash_ids are taken for blocks of {best} tokens, which their number fits best")
    return best


def write_mooncake(trace: Trace, path: Path) -> tuple[str, ...]:
    """Write what the format holds; the names of what it does not and is lost. Raises TraceError.

    Times are rounded to whole ms, as readers of the format expect them.
    """
    encoder = msgspec.json.Encoder()
    rows = (_Row(round(r.at_ms), r.prompt_tokens, r.output_tokens, r.block_ids) for r in trace.requests)
    write_lines(path, (encoder.encode(row) for row in rows))
    used = {
        "sessions": any(request.session is not None for request in trace.requests),
        "what requests wait for": any(request.after is not None for request in trace.requests),
        "blocks of answers": any(request.answer_block_ids for request in trace.requests),
        "models": any(request.model is not None for request in trace.requests),
        "tenants": any(request.tenant is not None for request in trace.requests),
        "priorities": any(request.priority for request in trace.requests),
    }
    return tuple(name for name, is_used in used.items() if is_used)


FORMAT = Format(
    "mooncake",
    "Mooncake traces: timestamp, input_length, output_length, hash_ids",
    lambda head: head.has("timestamp", "input_length", "output_length"),
    read_mooncake,
    ("block_tokens",),
)
