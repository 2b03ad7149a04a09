"""Per-request records of a vLLM run: lengths, and when the engine queued, scheduled and answered each request.

One JSON object a line, as LLMServingSim's bench writes them from vLLM's own request metrics
(casys-kaist/LLMServingSim): `request_id, input_toks, output_toks, arrival_time` (epoch, s), `queued_ts, scheduled_ts,
first_token_ts, last_token_ts` (s, one clock of the engine).
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.lines import OnBytes, decode, read_lines
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import Problems, RowError

_MS = 1000.0


class _Row(msgspec.Struct):
    input_toks: int
    output_toks: int
    queued_ts: float
    first_token_ts: float
    last_token_ts: float
    scheduled_ts: float | None = None


_DECODER = msgspec.json.Decoder(_Row)


def read_vllm_requests(path: Path, problems: Problems, on_bytes: OnBytes | None = None) -> LoadedTrace:
    """Read a run. A request arrives when the engine queues it: TTFT counts from there, as vLLM's own figures do, and
    `arrival_time` is on another clock."""
    builder = TraceBuilder(problems, any_order=True)
    for line, raw in read_lines(path, on_bytes):
        try:
            row = decode(raw, _DECODER)
            observed = _observed(row)
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        builder.add(line, TraceRequest(observed.arrival_ms, row.input_toks, row.output_toks), observed)
    return builder.build(path.parent.name + "/" + path.stem, source="a vLLM run, arrivals as its engine queued them")


def _observed(row: _Row) -> Observed:
    times = [row.queued_ts, row.first_token_ts, row.last_token_ts]
    names = ["queued_ts", "first_token_ts", "last_token_ts"]
    if row.scheduled_ts is not None:
        times.insert(1, row.scheduled_ts)
        names.insert(1, "scheduled_ts")
    for position, time_s in enumerate(times):
        if not math.isfinite(time_s) or (position and time_s < times[position - 1]):
            raise RowError(f"{names[position]}: {time_s} is before {names[position - 1]}")
    return Observed(
        arrival_ms=row.queued_ts * _MS,
        first_token_ms=row.first_token_ts * _MS,
        last_token_ms=row.last_token_ts * _MS,
        prompt_tokens=row.input_toks,
        output_tokens=row.output_toks,
        scheduled_ms=None if row.scheduled_ts is None else row.scheduled_ts * _MS,
    )
