"""Reports of guidellm (vllm-project/guidellm): one JSON document, `benchmarks[].requests.successful[]`.

Times are s since 1970. Names changed with versions; those of 0.2 to 0.6 are known.
"""

from __future__ import annotations

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.fields import Json, first_of, number, whole_number
from pointsman.edge.traces.lines import decode, read_all
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Head, Source

_MS = 1000.0
_TIMINGS = ("info.timings.", "scheduler_info.request_timings.")


def _timings(*names: str) -> tuple[str, ...]:
    return tuple(part + name for part in _TIMINGS for name in names)


_START = ("request_start_time", "start_time", *_timings("request_start", "resolve_start"))
_FIRST = ("first_token_iteration", "first_token_time", *_timings("first_token_iteration", "first_iteration"))
_LAST = ("last_token_iteration", "last_token_time", *_timings("last_token_iteration", "last_iteration"))
_END = ("request_end_time", "end_time", *_timings("request_end", "resolve_end"))
_PROMPT = ("prompt_tokens", "input_metrics.total_tokens", "input_metrics.text_tokens")
_OUTPUT = ("output_tokens", "output_metrics.total_tokens", "output_metrics.text_tokens")
_CACHED = ("cached_tokens", "input_metrics.cached_tokens")
_SESSION = ("info.conversation_id",)


class _Requests(msgspec.Struct):
    successful: list[dict[str, object]] = []
    incomplete: list[dict[str, object]] | None = None
    errored: list[dict[str, object]] | None = None


class _Totals(msgspec.Struct):
    successful: int | None = None


class _Metrics(msgspec.Struct):
    request_totals: _Totals | None = None


class _Benchmark(msgspec.Struct):
    requests: _Requests
    metrics: _Metrics | None = None
    request_totals: _Totals | None = None


class _Report(msgspec.Struct):
    benchmarks: list[_Benchmark]


_DECODER = msgspec.json.Decoder(_Report)


def read_guidellm(source: Source) -> LoadedTrace:
    """Read all benchmarks of a report as one trace, as they ran one after the other. Rows are counted from 1."""
    source.problems.unit = "request"
    try:
        report = decode(read_all(source.path, source.options.on_bytes), _DECODER)
    except RowError as error:
        raise TraceError(f"{source.path}: {error}") from None
    if len(report.benchmarks) > 1:
        source.problems.notes.append(f"{len(report.benchmarks)} benchmarks that ran one after the other are one trace")
    builder = TraceBuilder(source.problems, any_order=True)
    row_number = 0
    for benchmark in report.benchmarks:
        _note_sample(source, benchmark)
        for row in benchmark.requests.successful:
            row_number += 1
            _add(builder, row_number, row)
        for rows, why in (
            (benchmark.requests.errored, "it failed"),
            (benchmark.requests.incomplete, "it was not finished when the benchmark ended"),
        ):
            for row in rows or ():
                row_number += 1
                detail = row.get("error")
                builder.leave_out(row_number, f"{why}: {detail}" if isinstance(detail, str) else why)
    return builder.build(source.name, "guidellm report, arrivals as its client sent them; no prefixes")


def _note_sample(source: Source, benchmark: _Benchmark) -> None:
    totals = benchmark.request_totals or (benchmark.metrics.request_totals if benchmark.metrics else None)
    held = len(benchmark.requests.successful)
    if totals is not None and totals.successful is not None and totals.successful > held:
        source.problems.notes.append(
            f"the report holds a sample: {held} of {totals.successful} requests that succeeded"
        )


def _add(builder: TraceBuilder, row_number: int, row: Json) -> None:
    try:
        observed = _observed(row)
    except RowError as error:
        builder.leave_out(row_number, str(error))
        return
    _, session = first_of(row, _SESSION)
    request = TraceRequest(
        observed.arrival_ms,
        observed.prompt_tokens,
        observed.output_tokens,
        session=session if isinstance(session, str) else None,
    )
    builder.add(row_number, request, observed)


def _observed(row: Json) -> Observed:
    arrival_ms = _time_ms(row, _START)
    if arrival_ms is None:
        raise RowError(f"none of {', '.join(_START)}")
    first_ms = _time_ms(row, _FIRST)
    last_ms = _time_ms(row, _LAST)
    if last_ms is None:
        last_ms = _time_ms(row, _END)
    times = [time_ms for time_ms in (arrival_ms, first_ms, last_ms) if time_ms is not None]
    if times != sorted(times):
        raise RowError("its first token comes before its start, or its last before its first")
    cached_path, cached = first_of(row, _CACHED)
    return Observed(
        arrival_ms,
        first_ms,
        last_ms,
        _tokens(row, _PROMPT),
        _tokens(row, _OUTPUT),
        whole_number(cached, cached_path) if cached_path else None,
    )


def _tokens(row: Json, paths: tuple[str, ...]) -> int:
    path, value = first_of(row, paths)
    if not path:
        raise RowError(f"none of {', '.join(paths)}")
    return whole_number(value, path)


def _time_ms(row: Json, paths: tuple[str, ...]) -> float | None:
    path, value = first_of(row, paths)
    return number(value, path) * _MS if path else None


def _recognise(head: Head) -> bool:
    return head.text.startswith("{") and '"benchmarks"' in head.text


FORMAT = Format("guidellm", "reports of guidellm as JSON", _recognise, read_guidellm)
