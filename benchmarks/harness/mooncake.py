"""Mooncake's conversation trace."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from harness.data import data_file
from pointsman.core.workload.trace import Trace, TraceRequest

BLOCK_TOKENS = 512


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def conversation_trace(*, output_tokens: int | None = None) -> Trace:
    """All of it; with answers of `output_tokens` if that is given. Raises BenchmarkError if the file is not there."""
    lines = data_file("mooncake/conversation_trace.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=_Row) for line in lines]
    requests = [TraceRequest(row.timestamp, row.input_length, row.output_length, row.hash_ids) for row in rows]
    if output_tokens is not None:
        requests = [replace(request, output_tokens=output_tokens) for request in requests]
    return Trace("Mooncake conversation", requests, BLOCK_TOKENS, "kvcache-ai/Mooncake, FAST25 release")
