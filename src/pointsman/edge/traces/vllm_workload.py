"""Workloads of LLMServingSim (casys-kaist/LLMServingSim): what its vLLM runs were asked, one JSON object a line.

`input_toks, output_toks, arrival_time_ns`, and where prefixes are known `block16_ids`: one chained id for each block of
16 tokens.
"""

from __future__ import annotations

import msgspec

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.source import Format, Source

_BLOCK_TOKENS = 16
_NS_PER_MS = 1e6


class _Row(msgspec.Struct):
    input_toks: int
    output_toks: int
    arrival_time_ns: float
    block16_ids: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(_Row)


def read_vllm_workload(source: Source) -> LoadedTrace:
    """Read it."""
    builder = TraceBuilder(source.problems, block_tokens=_BLOCK_TOKENS, keep_times=True)
    for line, row in builder.decoded(source.lines(), _DECODER):
        at_ms = row.arrival_time_ns / _NS_PER_MS
        builder.add(line, TraceRequest(at_ms, row.input_toks, row.output_toks, row.block16_ids))
    return builder.build(source.name, "LLMServingSim workload")


FORMAT = Format(
    "vllm-workload",
    "workloads of LLMServingSim: input_toks, output_toks, arrival_time_ns, block16_ids",
    lambda head: head.has("input_toks", "output_toks", "arrival_time_ns"),
    read_vllm_workload,
)
