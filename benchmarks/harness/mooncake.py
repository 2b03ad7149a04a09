"""Mooncake's conversation trace."""

from __future__ import annotations

from dataclasses import replace

from harness.data import data_file
from pointsman.core.workload.trace import Trace
from pointsman.edge.traces.formats import read_trace

BLOCK_TOKENS = 512


def conversation_trace(*, output_tokens: int | None = None) -> Trace:
    """All of it; with answers of `output_tokens` if that is given. Raises BenchmarkError if the file is not there."""
    trace = read_trace(data_file("mooncake/conversation_trace.jsonl")).trace
    if output_tokens is None:
        return trace
    return replace(trace, requests=[replace(request, output_tokens=output_tokens) for request in trace.requests])
