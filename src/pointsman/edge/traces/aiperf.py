"""Per-request records of AIPerf (ai-dynamo/aiperf), `profile_export.jsonl`: one JSON object a line.

`metadata` has `request_start_ns, request_end_ns` (since 1970), `x_correlation_id` (the session), `turn_index`;
`metrics` has values with units: `input_sequence_length, output_sequence_length, time_to_first_token, request_latency,
inter_token_latency`; `error` why it failed. GenAI-Perf's older files hold no token counts.
"""

from __future__ import annotations

import msgspec

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.fields import whole_number
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

_NS_PER_MS = 1e6
_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_OUTPUTS = ("output_sequence_length", "output_token_count")


class _Metric(msgspec.Struct):
    value: float | list[float] | None = None
    unit: str = ""


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int | None = None
    x_correlation_id: str | None = None
    turn_index: int = 0
    was_cancelled: bool = False


class _Error(msgspec.Struct):
    message: str = ""
    code: int | None = None


class _Row(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Metric] | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_Row)


def read_aiperf(source: Source) -> LoadedTrace:
    """Read it. Turns of a session wait for the turn before them."""
    builder = TraceBuilder(source.problems, any_order=True)
    rows = list(builder.decoded(source.lines(), _DECODER))
    ends_ns = {
        (row.metadata.x_correlation_id, row.metadata.turn_index): row.metadata.request_end_ns
        for _, row in rows
        if row.error is None and not row.metadata.was_cancelled
    }
    conversations = {session for session, turn in ends_ns if turn}
    for line, row in rows:
        try:
            observed = _observed(row)
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        about = row.metadata
        # A session of one request is an id of that request and no session.
        session = about.x_correlation_id if about.x_correlation_id in conversations else None
        before = (about.x_correlation_id, about.turn_index - 1)
        end_ns = ends_ns.get(before) if session is not None else None
        after = before if end_ns is not None else None
        request = TraceRequest(
            observed.arrival_ms,
            observed.prompt_tokens,
            observed.output_tokens,
            session=session,
            gap_ms=0.0 if end_ns is None else max(0.0, (about.request_start_ns - end_ns) / _NS_PER_MS),
        )
        key = (about.x_correlation_id, about.turn_index)
        builder.add(line, request, observed, key=key if session is not None else None, after=after)
    return builder.build(source.name, "AIPerf records, arrivals as its client sent them; no prefixes")


def _observed(row: _Row) -> Observed:
    if row.error is not None:
        raise RowError(f"it failed: {row.error.message or row.error.code}")
    if row.metadata.was_cancelled:
        raise RowError("it was cancelled")
    metrics = row.metrics or {}
    arrival_ms = row.metadata.request_start_ns / _NS_PER_MS
    ttft_ms, e2e_ms = _duration_ms(metrics, "time_to_first_token"), _duration_ms(metrics, "request_latency")
    if e2e_ms is None and row.metadata.request_end_ns is not None:
        e2e_ms = (row.metadata.request_end_ns - row.metadata.request_start_ns) / _NS_PER_MS
    if (ttft_ms or 0.0) < 0 or (e2e_ms or 0.0) < 0:
        raise RowError("its time to first token or its latency is below 0")
    return Observed(
        arrival_ms,
        None if ttft_ms is None else arrival_ms + ttft_ms,
        None if e2e_ms is None else arrival_ms + e2e_ms,
        _tokens(metrics, ("input_sequence_length",)),
        _tokens(metrics, _OUTPUTS),
    )


def _tokens(metrics: dict[str, _Metric], names: tuple[str, ...]) -> int:
    for name in names:
        if name in metrics:
            return whole_number(metrics[name].value, f"metrics.{name}.value")
    raise RowError(f"no metrics.{names[0]}")


def _duration_ms(metrics: dict[str, _Metric], name: str) -> float | None:
    metric = metrics.get(name)
    if metric is None or not isinstance(metric.value, float):
        return None
    if metric.unit not in _UNITS_MS:
        raise RowError(f"metrics.{name}.unit: {metric.unit!r} is no unit of time")
    return metric.value * _UNITS_MS[metric.unit]


FORMAT = Format(
    "aiperf",
    "per-request records of AIPerf: profile_export.jsonl",
    lambda head: head.has("metadata", "metrics"),
    read_aiperf,
)
