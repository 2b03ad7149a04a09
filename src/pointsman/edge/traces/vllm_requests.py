"""Per-request records of a vLLM run: lengths, and when the engine queued, scheduled and answered each request.

One JSON object a line, as LLMServingSim's bench writes them from vLLM's own request metrics
(casys-kaist/LLMServingSim): `request_id, input_toks, output_toks, arrival_time` (epoch, s), `queued_ts, scheduled_ts,
first_token_ts, last_token_ts` (s, one clock of the engine).
"""

from __future__ import annotations

import math

import msgspec

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.lines import decode
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

_MS = 1000.0


class _Row(msgspec.Struct):
    input_toks: int
    output_toks: int
    arrival_time: float
    queued_ts: float
    first_token_ts: float
    last_token_ts: float
    scheduled_ts: float | None = None


_DECODER = msgspec.json.Decoder(_Row)


def read_vllm_requests(source: Source) -> LoadedTrace:
    """Read a run. A request arrives when the engine's API took it, as in vLLM's own figure of TTFT.

    `arrival_time` is on another clock than the rest: the two are put together by the request that the engine queued
    soonest after it had come, as an engine takes its new requests between two steps only.
    """
    builder = TraceBuilder(source.problems, any_order=True)
    rows: list[tuple[int, _Row | RowError]] = []
    for line, raw in source.lines():
        try:
            row = decode(raw, _DECODER)
            _check(row)
            rows.append((line, row))
        except RowError as error:
            rows.append((line, error))
    good = [row for _, row in rows if isinstance(row, _Row)]
    offset_s = min((row.queued_ts - row.arrival_time for row in good), default=0.0)
    for line, found in rows:
        if isinstance(found, RowError):
            builder.leave_out(line, str(found))
            continue
        observed = _observed(found, offset_s)
        builder.add(line, TraceRequest(observed.arrival_ms, found.input_toks, found.output_toks), observed)
    return builder.build(source.name, "a vLLM run, arrivals as its API took them")


def _check(row: _Row) -> None:
    times = [row.queued_ts, row.first_token_ts, row.last_token_ts]
    names = ["queued_ts", "first_token_ts", "last_token_ts"]
    if row.scheduled_ts is not None:
        times.insert(1, row.scheduled_ts)
        names.insert(1, "scheduled_ts")
    if not math.isfinite(row.arrival_time):
        raise RowError(f"arrival_time: {row.arrival_time} is no time")
    for position, time_s in enumerate(times):
        if not math.isfinite(time_s) or (position and time_s < times[position - 1]):
            raise RowError(f"{names[position]}: {time_s} is before {names[position - 1]}")


def _observed(row: _Row, offset_s: float) -> Observed:
    return Observed(
        arrival_ms=(row.arrival_time + offset_s) * _MS,
        first_token_ms=row.first_token_ts * _MS,
        last_token_ms=row.last_token_ts * _MS,
        prompt_tokens=row.input_toks,
        output_tokens=row.output_toks,
        scheduled_ms=None if row.scheduled_ts is None else row.scheduled_ts * _MS,
    )


FORMAT = Format(
    "vllm-requests",
    "requests of a vLLM run with the times at which its engine queued, scheduled and answered them",
    lambda head: head.has("input_toks", "output_toks", "queued_ts"),
    read_vllm_requests,
)
